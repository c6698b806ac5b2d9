"""Messages, objects, works and threads of the backend: parts of `worker_api`.

Invariant: as that of `parts`.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.collectives.torch.parts import Parts, equal, everyones, values

RANK, SIZE = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
part = Parts()


@part
def messages() -> None:
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    # Everybody sends before it receives, more than fits into any buffer.
    big = torch.full((3 << 20,), float(RANK))
    got = torch.empty_like(big)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, big, after), dist.P2POp(dist.irecv, got, before)])
    for work in works:
        work.wait()
    assert got[0] == before and got[-1] == before
    for turn in range(20):
        if RANK == 0:
            dist.send(torch.tensor([turn]), 1)
        elif RANK == 1:
            one = torch.zeros(1, dtype=torch.int64)
            assert dist.recv(one, 0) == 0
            assert one.item() == turn
    if RANK == 2:  # tags tell messages apart, whatever their order
        first, second = torch.tensor([1.0]), torch.tensor([2.0])
        works = [dist.isend(first, 0, tag=7), dist.isend(second, 0, tag=8)]
    elif RANK == 0:
        second, first = torch.zeros(2, 2)[:, :1].unbind(0)
        works = [dist.irecv(second, 2, tag=8)]
        works[0].wait()
        works = [dist.irecv(first, 2, tag=7)]
    for work in works:
        work.wait()
    assert RANK == 1 or (first.item(), second.item()) == (1.0, 2.0)


@part
def objects() -> None:
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK, "more": "x" * 100 * RANK})
    assert [f["rank"] for f in found] == [0, 1, 2] and len(found[2]["more"]) == 200
    things = [("from", RANK), None] if RANK == 1 else [None, None]
    dist.broadcast_object_list(things, 1)
    assert things == [("from", 1), None]
    gathered = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, gathered, 0)
    assert gathered == ([0, 1, 2] if RANK == 0 else None)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, ["a", "b", "c"] if RANK == 0 else None, 0)
    assert mine == ["abc"[RANK]]


@part
def works_and_futures() -> None:
    x = values(RANK, torch.float32)
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() is True
    equal(x, sum(everyones(torch.float32)))
    assert work.is_completed() and work.is_success() and work.exception() is None and work.result()[0] is x
    columns = torch.ones(4, 3)[:, 1]  # is copied to and fro
    work = dist.all_reduce(columns, async_op=True)
    future = work.get_future()
    assert future is work.get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    assert doubled.wait().tolist() == [6.0] * 4 and columns.tolist() == [3.0] * 4
    polled = torch.ones(4, 3)[:, 1]
    work = dist.all_reduce(polled, async_op=True)
    until = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < until
        time.sleep(0.001)
    assert polled.tolist() == [3.0] * 4
    many = [dist.all_reduce(torch.full((1000,), float(i)), async_op=True) for i in range(50)]
    dist.barrier()
    results = [work.get_future().wait()[0][0].item() for work in reversed(many)]
    assert results == [3.0 * i for i in reversed(range(50))]
    kept = dist.all_reduce(torch.ones(100_000), async_op=True)  # nobody else holds the tensor
    kept.wait()
    assert kept.result()[0].sum().item() == 300_000
    dist.barrier(async_op=True).wait()


@part
def several_threads() -> None:
    """Calls of several threads do not get into each other's way; their order is the caller's affair."""
    groups = [dist.new_group() for _ in range(2)]
    found: list[float] = []
    lock = threading.Lock()

    def run(group: Any) -> None:
        for _ in range(30):
            x = torch.ones(100)
            dist.all_reduce(x, group=group)
            with lock:
                found.append(x.sum().item())

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for _ in range(30):
        dist.all_reduce(torch.ones(5))
    for thread in threads:
        thread.join()
    assert found == [300.0] * 60
    for group in groups:
        dist.destroy_process_group(group)


@part
def together() -> None:
    xs = [values(RANK, torch.float32), values(RANK, torch.int32), torch.ones(4, 2)[:, 0]]
    dist.group.WORLD.allreduce_coalesced(xs).wait()  # torch's own call wants one dtype
    equal(xs[0], sum(everyones(torch.float32)))
    equal(xs[1], sum(everyones(torch.int32)).to(torch.int32))
    assert xs[2].tolist() == [3.0] * 4
    ys = [values(RANK, torch.float32) for _ in range(3)]
    with _coalescing_manager(async_ops=True) as manager:
        for y in ys:
            dist.all_reduce(y)
    manager.wait()
    for y in ys:
        equal(y, sum(everyones(torch.float32)))
    outs, ins = [torch.empty(SIZE, 2), torch.empty(SIZE, 3)], [torch.full((n,), float(RANK)) for n in (2, 3)]
    with _coalescing_manager():
        for out, inp in zip(outs, ins, strict=True):
            dist.all_gather_into_tensor(out, inp)
    assert [out[:, 0].tolist() for out in outs] == [[0.0, 1.0, 2.0]] * 2
    mine = [torch.empty(1), torch.empty(2)]
    with _coalescing_manager(async_ops=True) as manager:
        for i, out in enumerate(mine):
            dist.reduce_scatter_tensor(out, torch.ones(SIZE * (i + 1)))
    manager.wait()
    assert [m.tolist() for m in mine] == [[3.0], [3.0, 3.0]]
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(ys[0], 0)
        dist.broadcast(ys[1], 1)
    manager.wait()


@part
def functional() -> None:
    """What compiled programs and DTensor call, from C++."""
    import torch.distributed._functional_collectives as f

    group = dist.group.WORLD
    x = values(RANK, torch.float32)
    equal(f.all_reduce(x, "sum", group) + 0, sum(everyones(torch.float32)))
    equal(f.all_gather_tensor(x, 0, group) + 0, torch.cat(everyones(torch.float32)))
    equal(f.reduce_scatter_tensor(torch.ones(6), "sum", 0, group) + 0, torch.full((2,), 3.0))
    equal(f.broadcast(x, 2, group) + 0, values(2, torch.float32))
    equal(f.all_to_all_single(torch.full((3,), float(RANK)), None, None, group) + 0, torch.arange(3.0))
    reduced = f.all_reduce_coalesced([x, x], "avg", group)
    assert [(t + 0).shape for t in reduced] == [(3, 5)] * 2
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (SIZE,))
    full = torch.arange(12.0).reshape(6, 2)
    sharded = distribute_tensor(full, mesh, [Shard(0)])
    equal(sharded.redistribute(mesh, [Replicate()]).to_local(), full)
    equal((sharded * 2).full_tensor(), full * 2)
