"""What torch itself, its tools and programs ask of a process group beyond torch.distributed's functions. Three ranks.

Invariant: as that of `parts`.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

import collectives.torch
from collectives.native.errors import DesyncError, OpTimeout
from tests.collectives.torch.asked_works import SOON, forms, ones, part
from tests.collectives.torch.parts import equal, raises

RANK, SIZE = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
# --- the group


@part
def devices_and_backend() -> None:
    world: Any = dist.group.WORLD
    cpu = torch.device("cpu")
    assert world._device_types == [cpu]
    assert c10d._device_capability() == ["cpu"]
    assert c10d._get_pg_default_device() == cpu
    backend = world._get_backend(cpu)
    assert backend.name() == "collectives" == world._get_backend_name() == world.name()
    assert (backend.rank(), backend.size()) == (RANK, SIZE)
    assert not (backend.supports_splitting or backend.supports_coalescing or backend.supports_time_estimate)
    assert not backend.supports_tensor_alloc(cpu) and not backend.supports_shrinking
    raises(RuntimeError, "host memory", lambda: world._get_backend(torch.device("cuda")))
    assert backend.options._timeout == timedelta(seconds=60)
    assert not world._has_hooks()
    world._wait_for_pending_works()


@part
def timeouts_of_a_group() -> None:
    ways: list[Any] = [
        lambda g: c10d._set_pg_timeout(SOON, g),
        lambda g: g._get_backend(torch.device("cpu"))._set_default_timeout(SOON),
        lambda g: g.set_timeout(SOON),
    ]
    for way in ways:
        group: Any = dist.new_group()
        way(group)
        assert group.options._timeout == SOON
        if RANK == 0:
            raises(OpTimeout, "rank", partial(dist.all_reduce, ones(), group=group))
            raises(OpTimeout, "", partial(dist.recv, ones(), 1, group=group))
        dist.barrier()
        dist.destroy_process_group(group)


@part
def sequence_numbers() -> None:
    group: Any = dist.new_group()
    group._set_sequence_number_for_group()
    assert group._get_sequence_number_for_group() == 0
    dist.all_reduce(ones(), group=group)
    dist.all_reduce(ones(), group=group, async_op=True).wait()
    dist.barrier(group)
    assert group._get_sequence_number_for_group() == 3
    dist.destroy_process_group(group)


# --- the forms of its methods


@part
def forms_of_reductions() -> None:
    world: Any = dist.group.WORLD
    for op, wanted in ((ReduceOp.SUM, 6.0), (ReduceOp.MAX, 3.0), (ReduceOp.PRODUCT, 6.0), (ReduceOp.AVG, 2.0)):
        opts = dist.AllreduceOptions()
        opts.reduceOp = op
        for call in forms(
            lambda t, op=op: world.allreduce(t, op),
            lambda t, op=op: world.allreduce([t], op=op),
            lambda t, op=op: world.allreduce(tensor=t, op=op, timeout=timedelta(seconds=20)),
            lambda t, op=op: world.allreduce(tensors=[t], op=op),
            lambda t, opts=opts: world.allreduce([t], opts),
            lambda t, opts=opts: world.allreduce([t], opts=opts),
        ):
            x = ones(RANK + 1)
            call(x).wait()
            assert x.tolist() == [wanted] * 3, (op, x)
    for root in range(SIZE):
        for call in forms(
            lambda t, r=root: world.reduce(t, r),
            lambda t, r=root: world.reduce(t, root=r, op=ReduceOp.SUM),
            lambda t, r=root: world.reduce(tensor=t, root=r, timeout=timedelta(seconds=20)),
        ):
            x = ones(RANK + 1)
            call(x).wait()
            assert root != RANK or x.tolist() == [6.0] * 3
    for call in forms(
        world.reduce_scatter,
        lambda o, i: world.reduce_scatter(o, i, ReduceOp.SUM),
        lambda o, i: world.reduce_scatter(output=o, input=i, op=ReduceOp.SUM),
        lambda o, i: world.reduce_scatter([o], [i]),
    ):
        out = ones(0)
        call(out, [ones(r + RANK) for r in range(SIZE)]).wait()
        assert out.tolist() == [3.0 * RANK + 3.0] * 3
    x = ones(RANK)
    world.allreduce_coalesced([x, y := ones(1)]).wait()
    assert x.tolist() == [3.0] * 3 == y.tolist()


@part
def forms_of_what_is_moved() -> None:
    world: Any = dist.group.WORLD
    for root in range(SIZE):
        opts = dist.BroadcastOptions()
        opts.rootRank = root
        for call in forms(
            lambda t, r=root: world.broadcast(t, r),
            lambda t, r=root: world.broadcast(t, root=r),
            lambda t, r=root: world.broadcast(tensor=t, root=r, timeout=timedelta(seconds=20)),
            lambda t, opts=opts: world.broadcast([t], opts),
        ):
            x = ones(RANK)
            call(x).wait()
            assert x.tolist() == [root] * 3
        for call in forms(
            lambda o, i, r=root: world.gather(o, i, r),
            lambda o, i, r=root: world.gather(output_tensors=o, input_tensor=i, root=r),
            lambda o, i, r=root: world.gather(o, i, root=r, timeout=timedelta(seconds=20)),
        ):
            outs = [ones(9) for _ in range(SIZE)] if root == RANK else []
            call(outs, ones(RANK)).wait()
            assert [o[0].item() for o in outs] == ([0.0, 1.0, 2.0] if root == RANK else [])
        for call in forms(
            lambda o, i, r=root: world.scatter(o, i, r),
            lambda o, i, r=root: world.scatter(output_tensor=o, input_tensors=i, root=r),
        ):
            out = ones(9)
            call(out, [ones(10 * r) for r in range(SIZE)] if root == RANK else []).wait()
            assert out.tolist() == [10.0 * RANK] * 3
    for call in forms(
        world.allgather,
        lambda o, i: world.allgather(o, input_tensor=i, timeout=timedelta(seconds=20)),
        lambda o, i: world.allgather([o], [i]),
    ):
        outs = [ones(9) for _ in range(SIZE)]
        call(outs, ones(RANK)).wait()
        assert [o[0].item() for o in outs] == [0.0, 1.0, 2.0]
    outs = [ones(9) for _ in range(SIZE)]
    world.alltoall(outs, [ones(10 * RANK + to) for to in range(SIZE)], timeout=timedelta(seconds=20)).wait()
    assert [o[0].item() for o in outs] == [10.0 * of + RANK for of in range(SIZE)]
    flat = torch.zeros(SIZE)
    world.alltoall_base(flat, torch.full((SIZE,), float(RANK)), [], [], timedelta(seconds=20)).wait()
    assert flat.tolist() == [0.0, 1.0, 2.0]
    for barrier in forms(
        world.barrier,
        lambda: world.barrier(timedelta(seconds=20)),
        lambda: world.barrier(timeout=timedelta(seconds=20)),
        lambda: world.barrier(dist.BarrierOptions()),
    ):
        barrier().wait()
    world.monitored_barrier(timedelta(seconds=20))


@part
def wrong_forms_are_refused_before_anything_is_sent() -> None:
    world: Any = dist.group.WORLD
    x = ones()
    raises(TypeError, "ReduceOp", lambda: world.allreduce(x, 1.5))
    raises(TypeError, "ReduceOp", lambda: world.allreduce(x, dist.BroadcastOptions()))
    raises(TypeError, "root", lambda: world.broadcast(x, "0"))
    raises(TypeError, "timedelta", lambda: world.barrier(3))
    raises(TypeError, "twice", lambda: world.allreduce(x, tensor=x))
    raises(TypeError, "no argument", lambda: world.allreduce(x, root=0))
    raises(TypeError, "tensors or tensor", world.allreduce)
    raises(TypeError, "at most", lambda: world.broadcast(x, 0, None, None))
    raises(TypeError, "not both", lambda: world.allreduce([x], dist.AllreduceOptions(), timedelta(seconds=1)))
    raises(ValueError, "root", lambda: world.broadcast(x, SIZE))
    dist.barrier()


@part
def deadlines_of_all_forms() -> None:
    group: Any = dist.new_group()
    if RANK == 0:
        raises(OpTimeout, "rank", lambda: group.barrier(timeout=SOON).wait())
    dist.barrier()
    dist.destroy_process_group(group)
    group = dist.new_group()
    if RANK == 0:
        raises(OpTimeout, "rank", lambda: group.monitored_barrier(timedelta(0)))  # not the group's own
    dist.barrier()
    dist.destroy_process_group(group)


# --- averages of integers


@part
def averages_of_integers() -> None:
    """Summed, then divided towards zero."""
    mine = torch.tensor([[7, -7, 5], [1, -1, 0], [1, -1, 6]])[RANK]  # sums 9, -9, 11
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        x = (mine - torch.tensor([0, 0, 21]) * (RANK == 0)).to(dtype)  # sums 9, -9, -10
        dist.all_reduce(x, ReduceOp.AVG)
        equal(x, torch.tensor([3, -3, -3], dtype=dtype))
    for unsigned in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        x = torch.tensor([7, 1, 3], dtype=unsigned)
        dist.all_reduce(x, ReduceOp.AVG)
        equal(x, torch.tensor([7, 1, 3], dtype=unsigned))
    columns = torch.arange(6).reshape(2, 3).t()  # is copied to and fro
    work = dist.all_reduce(columns, ReduceOp.AVG, async_op=True)
    work.wait()
    assert columns.tolist() == [[0, 3], [1, 4], [2, 5]]
    x = torch.tensor([RANK + 1])  # 6 / 3
    dist.reduce(x, 1, ReduceOp.AVG)
    assert x.item() == (2 if RANK == 1 else RANK + 1)
    out = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter_tensor(out, torch.tensor([4, 5, 6]), ReduceOp.AVG)
    assert out.item() == 4 + RANK
    uneven = torch.zeros(RANK + 1, dtype=torch.int32)
    dist.reduce_scatter(uneven, [torch.full((r + 1,), r + RANK, dtype=torch.int32) for r in range(SIZE)], ReduceOp.AVG)
    assert uneven.tolist() == [RANK + 1] * (RANK + 1)
    both = [ones(RANK), torch.tensor([RANK, -RANK])]
    opts = dist.AllreduceCoalescedOptions()
    opts.reduceOp = ReduceOp.AVG
    group: Any = dist.group.WORLD
    group.allreduce_coalesced(both, opts).wait()
    assert both[0].tolist() == [1.0] * 3 and both[1].tolist() == [1, -1]
    assert group.communicator.allreduce(mine.numpy(), op="avg").tolist() == [3, -3, 3]


# --- inference mode


@part
def inference_mode() -> None:
    with torch.inference_mode():
        turned = torch.full((4, 3), float(RANK)).t()
        x = dist.all_reduce(turned, async_op=True)
        pieces = [torch.zeros(3, 2).t() for _ in range(SIZE)]
        y = dist.all_gather(pieces, torch.full((2, 3), float(RANK)), async_op=True)
        uneven = [torch.zeros(r + 1) for r in range(SIZE)]
        z = dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK)), async_op=True)
        future = dist.all_reduce(column := torch.ones(4, 3)[:, 1], async_op=True).get_future()
        entries = torch.eye(2).to_sparse()
        sparse = dist.all_reduce(entries, async_op=True)
    for work in (x, y, z, sparse):
        work.wait()
    future.wait()
    assert turned.tolist() == [[3.0] * 4] * 3 and column.tolist() == [3.0] * 4
    assert [p[0, 0].item() for p in pieces] == [0.0, 1.0, 2.0] == [u[0].item() for u in uneven]
    assert entries.to_dense().tolist() == [[3.0, 0.0], [0.0, 3.0]]
    assert turned.is_inference()
    comm = dist.group.WORLD.communicator
    with torch.inference_mode():
        handles = [
            collectives.torch.allreduce_async_(plain := torch.full((2, 3), float(RANK)).t(), "sum", comm=comm),
            collectives.torch.broadcast_async_(moved := torch.full((2, 3), float(RANK)).t(), 1, comm=comm),
        ]
    for handle in handles:
        handle.wait()
    assert plain.tolist() == [[3.0] * 2] * 3 and moved.tolist() == [[1.0] * 2] * 3


# --- sparse tensors


@part
def sparse_sums() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        where = torch.tensor([[RANK, 3, 3], [0, 1, 1]])  # one entry of each rank's own, one of all, twice
        x = torch.sparse_coo_tensor(where, torch.tensor([RANK + 1, 1, 1]).to(dtype), (4, 2))
        wanted = torch.zeros(4, 2).to(dtype)
        wanted[0, 0], wanted[1, 0], wanted[2, 0], wanted[3, 1] = 1, 2, 3, 6
        for asynchronous in (False, True):
            y = x.clone()
            work: Any = dist.all_reduce(y, async_op=asynchronous) if dtype is not torch.complex64 else None
            if dtype is torch.complex64:  # torch's own call wants dense ones
                dist.group.WORLD.allreduce([y]).wait()
            elif asynchronous:
                work.wait()
            assert y.is_coalesced() and y._nnz() == 4
            equal(y.to_dense(), wanted)
    rows = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.full((1, 3), float(RANK)), (5, 3))  # as of embeddings
    dist.all_reduce(rows)
    assert rows.to_dense()[1].tolist() == [3.0] * 3 and rows.dense_dim() == 1
    nothing = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (5,))
    dist.all_reduce(nothing)
    assert nothing._nnz() == 0
    some = torch.sparse_coo_tensor([[4]] if RANK else torch.empty(1, 0, dtype=torch.int64), ones(1, min(RANK, 1)), (5,))
    dist.all_reduce(some)
    assert some.to_dense().tolist() == [0.0] * 4 + [2.0]
    average = torch.sparse_coo_tensor([[0]], ones(RANK, 1), (2,))
    dist.all_reduce(average, ReduceOp.AVG)
    assert average.to_dense().tolist() == [1.0, 0.0]
    raises(ValueError, "to_dense", lambda: dist.all_reduce(average, ReduceOp.MAX))
    raises(TypeError, "to_sparse", lambda: dist.all_reduce(torch.eye(3).to_sparse_csr()))
    group = dist.new_group()
    other = torch.sparse_coo_tensor([[0]], ones(1, 1), (2 + RANK,))
    raises(DesyncError, "shape", lambda: dist.all_reduce(other, group=group))
    dist.destroy_process_group(group)


# --- the profiler


@part
def profiling_titles() -> None:
    x, pieces = torch.ones(3, 4), [torch.empty(3, 4) for _ in range(SIZE)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.broadcast(x, 0)
        dist.all_gather(pieces, x)
        dist.reduce(x, 0)
        dist.barrier()
        dist.all_reduce(torch.eye(2).to_sparse())
        if RANK == 0:
            dist.send(x, 1)
        elif RANK == 1:
            dist.recv(x, 0)
    wanted = ["all_reduce", "all_reduce", "broadcast", "all_gather", "reduce", "barrier", "sparse_all_reduce"]
    wanted += [[], ["send"], ["recv"]][(RANK + 1) % SIZE]
    found = [event for event in profile.events() if event.name.startswith("collectives:")]
    assert sorted(event.name for event in found) == sorted(f"collectives:{name}" for name in wanted)
    for event in found:
        assert event.is_async and event.count == 1
        if event.name not in ("collectives:barrier", "collectives:sparse_all_reduce"):
            assert event.input_shapes == [[3, 4]], event
    dist.all_reduce(x)  # and afterwards as before
    assert not [t for t in threading.enumerate() if t.name.startswith("profil")]


if __name__ == "__main__":
    part.run()
