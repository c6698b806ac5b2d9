"""What programs do with models: hooks that chain futures, uneven data, sparse gradients, checkpoints. Two ranks.

Invariant: as that of `parts`. Results are compared with those of one process that has all the data, or of Gloo.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.collectives.torch.parts import Parts, equal

RANK, SIZE = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
part = Parts()
_folders = itertools.count()


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def shared_folder() -> str:
    """A new one in that which the command line names, the same on all ranks."""
    return str(Path(sys.argv[1]) / str(next(_folders)))


def same_as(model: Any, wanted: Any) -> None:
    """Whether its parameters, whole, are those of `wanted`."""
    for found, other in zip(model.parameters(), wanted.parameters(), strict=True):
        full = found.full_tensor() if isinstance(found, DTensor) else found
        equal(full.detach(), other.detach())


def gloo() -> Any:
    return dist.new_group(backend="gloo")


@part
def power_sgd() -> None:
    """Its callbacks wait for further futures."""

    def train(group: Any) -> Any:
        model = DDP(network(), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(6):
            torch.manual_seed(10 * step + RANK)
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().sum().backward()
            optimizer.step()
        return model

    ours, theirs = train(dist.group.WORLD), train(gloo())
    same_as(ours, theirs)
    same_as(ours, ours.module)


@part
def join_that_divides_by_who_is_left() -> None:
    def train(group: Any) -> Any:
        torch.manual_seed(0)
        model = DDP(torch.nn.Linear(4, 2), process_group=group)
        with model.join(divide_by_initial_world_size=False):
            for step in range(2 + 3 * RANK):
                model(torch.full((2, 4), float(step + RANK + 1))).sum().backward()
        return model

    ours, theirs = train(dist.group.WORLD), train(gloo())
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        equal(mine.grad, wanted.grad)


@part
def sparse_gradients() -> None:
    def train(group: Any) -> Any:
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(10, 3, sparse=True)
        model = DDP(torch.nn.Sequential(embedding, torch.nn.Linear(3, 1)), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad()
            words = torch.tensor([RANK, 5, 5, 2 + step])
            model(words).square().sum().backward()
            assert embedding.weight.grad.is_sparse
            optimizer.step()
        return model

    ours, theirs = train(dist.group.WORLD), train(gloo())
    same_as(ours, theirs)


@part
def checkpoints_saved_in_the_background() -> None:
    folder = shared_folder()
    model = network(seed=3)
    fully_shard(model)
    saved = get_model_state_dict(model)
    future = dcp.async_save(saved, checkpoint_id=folder)
    future.result()
    other = network(seed=4)
    fully_shard(other)
    loaded = get_model_state_dict(other)
    dcp.load(loaded, checkpoint_id=folder)
    set_model_state_dict(other, loaded)
    same_as(other, network(seed=3))


@part
def states_from_rank_0() -> None:
    """Only rank 0 has them."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)

    def whole() -> Any:
        return network(seed=5).state_dict() if RANK == 0 else {}

    sharded = network(seed=6)
    fully_shard(sharded)
    set_model_state_dict(sharded, whole(), options=options)
    same_as(sharded, network(seed=5))
    replicated = DDP(network(seed=6))
    set_model_state_dict(replicated, whole(), options=options)
    same_as(replicated, network(seed=5))


@part
def sharded_states_of_the_older_fsdp() -> None:
    folder = shared_folder()

    def build(seed: int) -> Any:
        return FullyShardedDataParallel(network(seed), device_id=torch.device("cpu"), use_orig_params=True)

    model, other = build(7), build(8)
    for each, does in ((model, dcp.save), (other, dcp.load)):
        with FullyShardedDataParallel.state_dict_type(each, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
            state = {"model": each.state_dict()}
            does(state, checkpoint_id=folder)
            if each is other:
                each.load_state_dict(state["model"])
    with FullyShardedDataParallel.summon_full_params(other):
        same_as(other, network(seed=7))


@part
def a_checkpoint_of_fsdp_loaded_for_tensor_parallelism() -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    older = FullyShardedDataParallel(network(seed=9), device_id=torch.device("cpu"), use_orig_params=True)
    newer = network(seed=9)
    fully_shard(newer)
    for model in (older, newer):
        folder = shared_folder()
        dcp.save(get_model_state_dict(model), checkpoint_id=folder)
        other = parallelize_module(network(seed=10), mesh, plan)
        state = get_model_state_dict(other)
        dcp.load(state, checkpoint_id=folder)
        set_model_state_dict(other, state)
        same_as(other, network(seed=9))
    x = torch.ones(3, 8)
    assert torch.allclose(other(x), network(seed=9)(x), atol=1e-6)
    assert distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]).to_local().shape == (2, 4)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    part.run()
