"""A rank of torch.distributed on CUDA tensors: `messages`, `by_nccl`, `sharded`, or `train BACKEND DEVICE FILE`.

RANK, WORLD_SIZE and STORE (a file) say how ranks meet. Rank r uses device r, counted modulo the number of devices.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import collectives.torch  # noqa: F401  # registers the backend

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 40


def begin(backend: str, on_cpu: bool = False) -> Any:
    device = torch.device("cpu")
    if not on_cpu:
        device = torch.device("cuda", RANK % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = f"file://{os.environ['STORE']}"
    dist.init_process_group(backend, init_method=store, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=60))
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    return device


def network() -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(pixels[order] / 16, dtype=torch.float32), torch.tensor(labels[order])


def train(model: Any, parameters: Any, device: Any, steps: int = STEPS) -> None:
    x, y = (tensor.to(device) for tensor in digits())
    optimizer = torch.optim.SGD(parameters, 0.05, momentum=0.9)
    for step in range(steps):
        chosen = slice((step * SIZE + RANK) * 16, (step * SIZE + RANK + 1) * 16)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()


def train_digits(backend: str, kind: str, file: str) -> None:
    device = begin(backend, on_cpu=kind == "cpu")
    model = DistributedDataParallel(network().to(device), bucket_cap_mb=0.02)
    train(model, model.parameters(), device)
    if RANK == 0:
        np.save(file, np.concatenate([p.detach().cpu().numpy().reshape(-1) for p in model.parameters()]))
    dist.barrier()
    dist.destroy_process_group()


def messages() -> None:
    device = begin("cpu:collectives,cuda:collectives")
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        x = torch.zeros(1 << 20, device=device)
        for _ in range(50):
            x += 0.02 * (RANK + 1)  # still under way when the message is asked for
        y = torch.full_like(x, -1.0)
        operations = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        z = y * 2
        torch.testing.assert_close(z.cpu(), torch.full((1 << 20,), 2.0 * (left + 1)), rtol=1e-3, atol=0)
    columns = torch.zeros(3, 4, device=device, dtype=torch.bfloat16).T
    given = torch.arange(12, device=device, dtype=torch.bfloat16).reshape(4, 3) + RANK
    if RANK % 2 == 0:
        dist.send(given, right, tag=5)
        dist.recv(columns, left, tag=5)
    else:
        dist.recv(columns, left, tag=5)
        dist.send(given, right, tag=5)
    assert torch.equal(columns.cpu(), (given - RANK + left).cpu())
    if RANK == 0:
        got = torch.zeros(3, device=device)
        sources = {dist.recv(got) for _ in range(SIZE - 1)}
        assert sources == set(range(1, SIZE))
    else:
        dist.send(torch.full((3,), float(RANK), device=device), 0)
    total = torch.full((4,), RANK + 1.0, device=device)
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    assert torch.equal(total.cpu(), torch.full((4,), SIZE * (SIZE + 1) / 2))
    parts = [torch.zeros(2, device=device) for _ in range(SIZE)]
    dist.all_gather(parts, torch.full((2,), float(RANK), device=device))
    assert torch.equal(torch.stack(parts).cpu(), torch.arange(float(SIZE)).repeat_interleave(2).reshape(SIZE, 2))
    dist.barrier()
    dist.destroy_process_group()


def by_nccl() -> None:
    """Messages that NCCL carries, in streams: all ranks send first, in one batch."""
    device = begin("cpu:collectives,cuda:collectives")
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    side = torch.cuda.Stream(device)
    for step in range(3):
        with torch.cuda.stream(side):
            x = torch.zeros(1 << 20, device=device)
            for _ in range(50):
                x += 0.02 * (RANK + 1 + step)  # still under way when the message is asked for
            y = torch.full_like(x, -1.0)
            operations = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
            works = dist.batch_isend_irecv(operations)
            assert len(works) == 1
            works[0].wait()
            z = y * 2
        expected = torch.full((1 << 20,), 2.0 * (left + 1 + step))
        torch.testing.assert_close(z.cpu(), expected, rtol=1e-3, atol=0)
    columns = torch.zeros(3, 4, device=device, dtype=torch.bfloat16).T
    given = torch.arange(12, device=device, dtype=torch.bfloat16).reshape(4, 3) + RANK
    if RANK % 2 == 0:
        dist.send(given, right)
        dist.recv(columns, left)
    else:
        dist.recv(columns, left)
        dist.send(given, right)
    total = torch.full((4,), RANK + 1.0, device=device)
    dist.all_reduce(total)
    assert torch.equal(columns.cpu(), (given - RANK + left).cpu())
    assert torch.equal(total.cpu(), torch.full((4,), SIZE * (SIZE + 1) / 2))
    narrow = given.to(torch.float8_e4m3fn)  # which has no name in __cuda_array_interface__
    got = torch.empty_like(narrow)
    operations = [dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, narrow, right)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(got.cpu().float(), (given - RANK + left).cpu().to(torch.float8_e4m3fn).float())
    with suppress(ValueError):
        dist.isend(given, right, tag=1)
        raise AssertionError("a tag was not refused")
    with suppress(ValueError):
        dist.irecv(given)
        raise AssertionError("a receive from any rank was not refused")
    engines = {o["engine"] for o in dist.group.WORLD.communicator.dump()["operations"] if o["collective"] == "send"}
    assert engines == {"nccl"}, engines
    dist.barrier()
    dist.destroy_process_group()


def sharded() -> None:
    """fully_shard gives the parameters that DistributedDataParallel gives."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = begin("cpu:collectives,cuda:collectives")
    whole = network().to(device)
    parts = network().to(device)
    parts.load_state_dict(whole.state_dict())
    fully_shard(parts, mesh=init_device_mesh("cuda", (SIZE,)))
    model = DistributedDataParallel(whole)
    train(model, model.parameters(), device, 5)
    train(parts, parts.parameters(), device, 5)
    for one, other in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), other.detach(), rtol=1e-5, atol=1e-6)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    wanted: dict[str, Callable[..., None]] = {
        "messages": messages,
        "by_nccl": by_nccl,
        "sharded": sharded,
        "train": train_digits,
    }
    wanted[sys.argv[1]](*sys.argv[2:])
