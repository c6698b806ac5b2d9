"""Models of PyTorch in two processes: with this backend they become what they become with Gloo, bit for bit.

Invariant: both backends see the same model, batches and order of operations.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

import collectives.torch
from collectives.arrays.wire import format_of
from collectives.native.errors import CollectiveError
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.table import join, parse

STEPS = 50
parts: list[Callable[[], None]] = []


def part(function: Callable[[], None]) -> Callable[[], None]:
    parts.append(function)
    return function


def digits() -> tuple[Any, Any]:
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(pixels[order] / 16, dtype=torch.float32), torch.tensor(labels[order])


class Network(torch.nn.Module):
    """With a layer that is used only where `aside` says so, and one that is never used."""

    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 128)
        self.middle = torch.nn.Linear(128, 128)
        self.norm = torch.nn.BatchNorm1d(128)
        self.aside = torch.nn.Linear(128, 128) if unused else None
        self.never = torch.nn.Linear(3, 3) if unused else None
        self.last = torch.nn.Linear(128, 10)

    def forward(self, x: Any, aside: bool = False) -> Any:
        h = self.norm(torch.relu(self.middle(torch.relu(self.first(x)))))
        if self.aside is not None and aside:
            h = h + self.aside(h)
        return self.last(h)


def train(group: Any, *, steps: int = STEPS, unused: bool = False, hook: Any = None, **settings: Any) -> Any:
    """The model after these steps, each rank with its own part of each batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = digits()
    torch.manual_seed(1 + rank)  # what DDP broadcasts at the start is rank 0's
    model = DDP(Network(unused), process_group=group, bucket_cap_mb=0.05, **settings)
    if hook is not None:
        model.register_comm_hook(*hook)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(steps):
        chosen = slice((step * size + rank) * 16, (step * size + rank + 1) * 16)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            model(x[chosen], aside=rank == 0) if unused else model(x[chosen]), y[chosen]
        ).backward()
        optimizer.step()
    return model


def bits(model: Any, buffers: bool = True) -> str:
    """Of what the model holds. Buffers are each rank's own between two steps: statistics of its part of a batch."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values() if buffers else model.parameters():
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def on_all(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


@part
def same_bits_as_gloo() -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"static_graph": True, "gradient_as_bucket_view": True, "steps": 10},
        {"unused": True, "find_unused_parameters": True, "steps": 10},
    ]
    for way in ways:
        ours, theirs = train(None, **way), train(GLOO, **way)
        assert bits(ours.module) == bits(theirs.module), way
        assert len(set(on_all(bits(ours.module, buffers=False)))) == 1, way
    untrained = bits(train(None, steps=0).module)
    assert untrained != bits(train(None, steps=1).module)


@part
def compression() -> None:
    plain = train(None, steps=20).module.state_dict()
    hooks: list[tuple[Any, Any]] = [
        (None, collectives.torch.fp16_hook),
        (None, collectives.torch.bf16_hook),
        (collectives.torch.HookState(error_feedback=True), collectives.torch.bf16_hook),
        (None, collectives.torch.int8_hook),
        (collectives.torch.HookState(error_feedback=True), collectives.torch.int8_hook),
        (collectives.torch.HookState(error_feedback=True), collectives.torch.fp8_hook),
        (None, default_hooks.fp16_compress_hook),
        (None, default_hooks.allreduce_hook),
    ]
    for hook in hooks:
        model = train(None, steps=20, hook=hook).module
        assert len(set(on_all(bits(model, buffers=False)))) == 1
        far = max(
            (model.state_dict()[k].float() - v.float()).abs().max().item() for k, v in plain.items() if "num" not in k
        )
        exact = hook[1].__name__ == "allreduce_hook"
        assert (far == 0.0) == exact and far < 0.05, (hook, far)
    with pytest.raises(TypeError, match="default_hooks"):
        train(GLOO, steps=1, hook=(GLOO, collectives.torch.fp16_hook))


@part
def compression_by_the_speed_of_links() -> None:
    hook = collectives.torch.auto_hook
    state = collectives.torch.HookState(error_feedback=True)
    plain = bits(train(None, steps=10, hook=(None, default_hooks.allreduce_hook)).module)
    assert bits(train(None, steps=10, hook=(state, hook)).module) == plain  # nobody has measured these links
    group: Any = dist.group.WORLD
    table = parse("allreduce any any any int8 wire=auto")
    group.communicator._choose_by(join([table, DEFAULTS]))
    chosen = bits(train(None, steps=10, hook=(state, hook)).module)
    other = collectives.torch.HookState(error_feedback=True)
    assert chosen == bits(train(None, steps=10, hook=(other, collectives.torch.int8_hook)).module) != plain
    group.communicator._choose_by(DEFAULTS)


@part
def rounding_errors_follow_their_parameters() -> None:
    """DDP orders parameters anew after the first step; then a bucket may have another format, too."""
    follow(collectives.torch.int8_hook)
    follow(collectives.torch.auto_hook)  # which sends as it is, because nobody has measured these links


def follow(later: Any) -> None:
    """Two steps, the first with int8_hook and the second with the hook `later`."""
    state = collectives.torch.HookState(error_feedback=True)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)))
    names = {p.data_ptr(): name for name, p in model.module.named_parameters()}
    orders: list[list[str]] = []
    lost: dict[str, Any] = {}
    wanted: list[Any] = []

    def hook(bucket: Any) -> Any:
        order, given = [names[p.data_ptr()] for p in bucket.parameters()], bucket.buffer().clone()
        if not orders:
            found = collectives.torch.int8_hook(state, bucket)
            kept = state.compression("int8")._residuals[0].clone()
            lost.update(zip(order, kept.split([p.numel() for p in bucket.parameters()]), strict=True))
        else:
            found = later(state, bucket)
            wanted.append(given + torch.cat([lost[name] for name in order]))
        orders.append(order)
        return found

    model.register_comm_hook(None, lambda _, bucket: hook(bucket))
    for step in range(2):
        model.zero_grad()
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        model(x).square().sum().backward()
    assert len(orders) == 2 and orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]), orders
    assert max(piece.abs().max() for piece in lost.values()) > 0
    sent = wanted[0]
    if later is collectives.torch.int8_hook:
        sent = torch.from_numpy(format_of("int8").rounded(wanted[0].numpy()))
        assert torch.equal(state.compression("int8")._residuals[0], wanted[0] - sent)
    else:
        assert not state.compression("int8")._residuals
        total = sent.clone()
        dist.all_reduce(total)
        grads = {name: p.grad.reshape(-1) for name, p in model.module.named_parameters()}
        assert torch.allclose(torch.cat([grads[name] for name in orders[1]]), total / dist.get_world_size())


@part
def error_feedback_loses_nothing() -> None:
    """A gradient far below the precision of bfloat16 beside a large one arrives in the end."""
    sums = {}
    for feedback in (False, True):
        compression = collectives.torch.Compression("bf16", error_feedback=feedback)
        gradient = torch.tensor([1.001])
        sums[feedback] = sum(compression.compress(gradient, 0).float().item() for _ in range(1000))
    assert abs(sums[True] - 1001.0) < 0.01 and abs(sums[False] - 1000.0) < 0.01, sums


@part
def ranks_that_run_out_of_data() -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 2))
    with model.join():
        for step in range(3 + 4 * rank):
            model(torch.full((2, 4), float(step + rank))).sum().backward()
    assert len(set(on_all(bits(model.module)))) == 1


@part
def accumulated_gradients() -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 2, bias=False))
    with model.no_sync():
        model(torch.full((1, 4), rank + 1.0)).sum().backward()
    model(torch.full((1, 4), rank + 1.0)).sum().backward()
    assert model.module.weight.grad.tolist() == [[3.0] * 4] * 2


@part
def fully_sharded() -> None:
    """FSDP's both kinds make the steps that one process makes with the whole batch."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = digits()

    def build() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def steps(model: Any, parts: int, mine: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(5):
            batch = slice(step * 32 + mine * (32 // parts), step * 32 + (mine + 1) * (32 // parts))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()

    alone = build()
    steps(alone, 1, 0)
    wanted = [p.detach() for p in alone.parameters()]
    new: Any = build()
    for layer in new:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(new)
    steps(new, size, rank)
    found = [p.full_tensor().detach() for p in new.parameters()]
    assert all(torch.allclose(f, w, atol=1e-6) for f, w in zip(found, wanted, strict=True))
    old = FullyShardedDataParallel(build(), device_id=torch.device("cpu"))
    steps(old, size, rank)
    with FullyShardedDataParallel.summon_full_params(old):
        found = [p.detach().clone() for p in old.parameters()]
    flat = torch.cat([w.reshape(-1) for w in wanted])
    assert torch.allclose(torch.cat([f.reshape(-1) for f in found]), flat, atol=1e-6)


@part
def different_models() -> None:
    group = dist.new_group()
    model = torch.nn.Linear(4, 2 + dist.get_rank())
    # Torch compares with rank 0, which may learn of it when it next needs the others.
    expected = pytest.raises(RuntimeError, match=r"shape|size") if dist.get_rank() else suppress(CollectiveError)
    with expected:
        DDP(model, process_group=group)
    dist.destroy_process_group(group)


def main() -> None:
    global GLOO  # noqa: PLW0603
    warnings.simplefilter("ignore")
    dist.init_process_group("collectives", init_method="collectives://", timeout=timedelta(seconds=30))
    GLOO = dist.new_group(backend="gloo")
    for each in parts:
        each()
        print(f"passed {each.__name__}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print("passed all", flush=True)


GLOO: Any = None

if __name__ == "__main__":
    main()
