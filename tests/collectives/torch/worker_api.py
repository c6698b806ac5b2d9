"""What torch.distributed offers, on this backend: every call against what it must give. Three ranks.

Invariant: as that of `parts`.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

import collectives.torch
from collectives.native.errors import Aborted, DesyncError, OpTimeout
from tests.collectives.torch.api_messages import part
from tests.collectives.torch.parts import equal, everyones, raises, values

RANK, SIZE = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
)
COMPLEX = (torch.complex64, torch.complex128)


@part
def all_dtypes_are_summed_and_sent() -> None:
    for dtype in (*FLOATS, *INTS, *COMPLEX):
        x = values(RANK, dtype)
        dist.all_reduce(x)
        total = sum(t.to(torch.complex128) for t in everyones(dtype))
        equal(x, (total.real if dtype not in COMPLEX else total).to(dtype))
        y = values(RANK, dtype)
        dist.broadcast(y, 1)
        equal(y, values(1, dtype))
        gathered = [torch.empty_like(y) for _ in range(SIZE)]
        dist.all_gather(gathered, values(RANK, dtype))
        for found, wanted in zip(gathered, everyones(dtype), strict=True):
            equal(found, wanted)


@part
def dtypes_that_are_only_moved() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = values(RANK, torch.float32).to(dtype)
        dist.broadcast(x, 2)
        assert torch.equal(x.view(torch.uint8), values(2, torch.float32).to(dtype).view(torch.uint8))
    raises(TypeError, "float8_e4m3fn", lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)))


@part
def all_ops() -> None:
    ops = {
        dist.ReduceOp.SUM: lambda a, b: a + b,
        dist.ReduceOp.PRODUCT: lambda a, b: a * b,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    for op, combine in ops.items():
        for dtype in (torch.int32, torch.uint8):
            x = values(RANK, dtype)
            dist.all_reduce(x, op)
            equal(x, functools.reduce(combine, everyones(dtype)))
    for dtype in FLOATS:
        x = values(RANK, dtype) * SIZE
        dist.all_reduce(x, dist.ReduceOp.AVG)
        equal(x, sum(everyones(torch.float64)).to(dtype))
    x = values(RANK, torch.float32)
    dist.all_reduce(x, _make_nccl_premul_sum(0.5))
    equal(x, sum(everyones(torch.float32)) * 0.5)
    raises(TypeError, "avg", lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG))


@part
def any_memory_will_do() -> None:
    whole = torch.zeros(6, 10)
    whole[::2, ::2] = values(RANK, torch.float32)
    dist.all_reduce(whole[::2, ::2])
    equal(whole[::2, ::2], sum(everyones(torch.float32)))
    assert whole[1::2].abs().sum() == 0
    turned = values(RANK, torch.float32).t()
    work = dist.all_reduce(turned, async_op=True)
    work.wait()
    equal(turned, sum(everyones(torch.float32)).t())
    like_images = values(RANK, torch.float32, (2, 3, 4, 5)).to(memory_format=torch.channels_last)
    dist.all_reduce(like_images)
    equal(like_images, sum(everyones(torch.float32, (2, 3, 4, 5))))
    single = torch.tensor(float(RANK))
    dist.all_reduce(single)
    assert single.item() == 3 and single.dim() == 0
    empty = torch.empty(0, 4)
    dist.all_reduce(empty)
    assert empty.shape == (0, 4)
    weight = torch.nn.Parameter(torch.full((3,), float(RANK)))
    dist.all_reduce(weight)
    assert weight.tolist() == [3.0] * 3 and weight.requires_grad
    conjugated = torch.full((2,), 1 + 2j).conj()
    work = dist.group.WORLD.broadcast([conjugated])  # as torch's own call would not let it through
    work.wait()
    assert conjugated.tolist() == [1 - 2j] * 2
    pieces = torch.zeros(SIZE, 15)  # neighbours in memory: filled where they lie
    dist.all_gather(list(pieces), values(RANK, torch.float32).reshape(-1))
    equal(pieces, torch.stack(everyones(torch.float32)).reshape(SIZE, -1))


@part
def the_same_memory_again() -> None:
    buckets = [torch.empty(5000), torch.empty(40, 3, dtype=torch.bfloat16), torch.empty(7, dtype=torch.int64)]
    for turn in range(5):
        for i, bucket in enumerate(buckets):
            bucket.fill_(i + turn + RANK)
        if turn == 3:
            with dist._coalescing_manager(async_ops=True) as together:
                for bucket in buckets:
                    dist.all_reduce(bucket)
            together.wait()
        elif turn == 4:
            dist.group.WORLD.allreduce_coalesced(buckets).wait()
        elif turn == 2:
            works = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
            assert [work.get_future().wait()[0].data_ptr() for work in works] == [b.data_ptr() for b in buckets]
        else:
            for bucket in buckets:
                dist.all_reduce(bucket)
        for i, bucket in enumerate(buckets):
            equal(bucket, torch.full_like(bucket, SIZE * (i + turn) + sum(range(SIZE))))
    # Another shape, op, or reason to look again, in the same memory.
    memory = torch.zeros(600)
    for _ in range(3):
        for x in (memory, memory[:300], memory.view(30, 20), memory.view(torch.int32), memory[::2]):
            x.fill_(RANK)
            dist.all_reduce(x)
            equal(x, torch.full_like(x, sum(range(SIZE))))
        memory.fill_(RANK)
        dist.all_reduce(memory, dist.ReduceOp.MAX)
        equal(memory, torch.full_like(memory, SIZE - 1))
    for _ in range(3):
        once = torch.full((1 << 16,), float(RANK))
        dist.all_reduce(once)  # its memory is free again soon, and may be another tensor's
        equal(once, torch.full_like(once, sum(range(SIZE))))
        del once


@part
def reduce_gather_scatter() -> None:
    x = values(RANK, torch.float32)
    dist.reduce(x, 1)
    equal(x, sum(everyones(torch.float32)) if RANK == 1 else values(RANK, torch.float32))
    found = [torch.empty(3, 5) for _ in range(SIZE)] if RANK == 2 else None
    dist.gather(values(RANK, torch.float32), found, dst=2)
    for got, wanted in zip(found or [], everyones(torch.float32), strict=False):
        equal(got, wanted)
    y = torch.empty(3, 5, dtype=torch.bfloat16)
    dist.scatter(y, everyones(torch.bfloat16) if RANK == 0 else None, src=0)
    equal(y, values(RANK, torch.bfloat16))
    raises(ValueError, "2 tensors", lambda: dist.all_gather([torch.empty(3)] * 2, torch.empty(3)))
    raises(ValueError, "does not fit", lambda: dist.all_gather([torch.empty(4)] * SIZE, torch.empty(3)))


@part
def unequal_lists() -> None:
    parts = [torch.empty(2 * rank + 1, 2) for rank in range(SIZE)]
    dist.all_gather(parts, torch.full((2 * RANK + 1, 2), float(RANK)))
    for rank, found in enumerate(parts):
        equal(found, torch.full((2 * rank + 1, 2), float(rank)))
    mine = torch.empty(RANK + 1)
    dist.reduce_scatter(mine, [torch.full((rank + 1,), float(rank + RANK)) for rank in range(SIZE)])
    equal(mine, torch.full((RANK + 1,), 3.0 * RANK + 3.0))


@part
def into_one_tensor() -> None:
    x = values(RANK, torch.float32)
    for shape in ((SIZE * 3, 5), (SIZE, 3, 5)):
        out = torch.empty(shape)
        dist.all_gather_into_tensor(out, x)
        equal(out, torch.cat(everyones(torch.float32)).reshape(shape))
    place = torch.full((SIZE, 4), -1.0)
    place[RANK] = RANK  # where it will be in the whole, as FSDP has it
    dist.all_gather_into_tensor(place, place[RANK])
    equal(place, torch.arange(3.0).reshape(3, 1).expand(3, 4).contiguous())
    mine = torch.empty(2)
    dist.reduce_scatter_tensor(mine, torch.arange(6.0) + RANK)
    equal(mine, 3 * torch.arange(6.0)[2 * RANK : 2 * RANK + 2] + 3)
    own = torch.arange(6.0) + RANK
    dist.reduce_scatter_tensor(own[2 * RANK : 2 * RANK + 2], own, op=dist.ReduceOp.AVG)
    equal(own[2 * RANK : 2 * RANK + 2], torch.arange(6.0)[2 * RANK : 2 * RANK + 2] + 1)
    scaled, source = torch.empty(2), torch.ones(6)
    dist.reduce_scatter_tensor(scaled, source, op=_make_nccl_premul_sum(2.0))
    assert scaled.tolist() == [6.0, 6.0] and source.tolist() == [1.0] * 6
    raises(ValueError, "3 times", lambda: dist.all_gather_into_tensor(torch.empty(4), torch.empty(2)))


@part
def all_to_all() -> None:
    x = torch.arange(6.0) + 10 * RANK
    y = torch.empty(6)
    dist.all_to_all_single(y, x)
    equal(y, torch.cat([torch.arange(6.0)[2 * RANK : 2 * RANK + 2] + 10 * rank for rank in range(SIZE)]))
    # rank r sends (r + to) % 3 rows to each
    sends = [(RANK + to) % SIZE for to in range(SIZE)]
    comes = [(RANK + of) % SIZE for of in range(SIZE)]
    rows = torch.cat([torch.full((n, 2), 10.0 * RANK + to) for to, n in enumerate(sends)])
    got = torch.empty(sum(comes), 2)
    dist.all_to_all_single(got, rows, comes, sends)
    equal(got, torch.cat([torch.full((n, 2), 10.0 * of + RANK) for of, n in enumerate(comes)]))
    out = [torch.empty(of + RANK + 1, dtype=torch.int64) for of in range(SIZE)]
    dist.all_to_all(out, [torch.full((RANK + to + 1,), 10 * RANK + to) for to in range(SIZE)])
    for of, found in enumerate(out):
        equal(found, torch.full((of + RANK + 1,), 10 * of + RANK))
    raises(ValueError, "evenly", lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4)))
    raises(ValueError, "input_split_sizes", lambda: dist.all_to_all_single(got, rows, comes, [1, 1, 9]))


@part
def groups() -> None:
    evens = dist.new_group([0, 2])
    if RANK != 1:
        x = torch.full((3,), float(RANK))
        dist.all_reduce(x, group=evens)
        assert x.tolist() == [2.0] * 3
        assert dist.get_rank(evens) == RANK // 2 and dist.get_world_size(evens) == 2
        y = torch.full((1,), float(RANK))
        dist.broadcast(y, src=2, group=evens)
        assert y.item() == 2.0
        if RANK == 0:
            dist.send(torch.ones(1), dst=2, group=evens)
        else:
            dist.recv(y, src=0, group=evens)
            assert y.item() == 1.0
        dist.destroy_process_group(evens)
    alone, _ = dist.new_subgroups(1)
    z = torch.ones(2)
    dist.all_reduce(z, group=alone)
    dist.all_gather([torch.empty(2)], z, group=alone)
    assert z.tolist() == [1.0, 1.0]


@part
def deadlines() -> None:
    group: Any = dist.new_group()
    group.set_timeout(timedelta(seconds=0.5))
    if RANK != 1:
        error = raises(OpTimeout, "rank 1", lambda: dist.all_reduce(torch.ones(1), group=group))
        assert isinstance(error, OpTimeout) and error.late == (1,)
        assert isinstance(error, TimeoutError)
    dist.barrier()
    patient = dist.new_group()
    if RANK == 1:
        dist.barrier()
        dist.all_reduce(torch.ones(1), group=patient)
    else:
        work = dist.all_reduce(torch.ones(1), group=patient, async_op=True)
        raises(OpTimeout, "", lambda: work.wait(timedelta(seconds=0.1)))
        dist.barrier()
        assert work.wait()  # went on


@part
def disagreements() -> None:
    """Errors on every rank, soon, saying who called what."""
    cases: list[Callable[[Any], Any]] = [
        lambda g: dist.all_reduce(torch.ones(3 + RANK % 2), group=g),
        lambda g: dist.all_reduce(torch.ones(3, dtype=(torch.float32, torch.int32)[RANK % 2]), group=g),
        lambda g: [dist.broadcast(torch.ones(3), RANK % 2, group=g), dist.barrier(group=g)],  # a root waits for no rank
        lambda g: dist.barrier(group=g) if RANK == 1 else dist.all_reduce(torch.ones(3), group=g),
        lambda g: dist.all_reduce(torch.ones(3 + RANK % 2), group=g, async_op=True).wait(),
        lambda g: dist.all_reduce(torch.ones(3 + RANK % 2), group=g, async_op=True).get_future().wait(),
    ]
    for case in cases:
        group = dist.new_group()
        start = time.monotonic()
        raises(DesyncError, "rank", functools.partial(case, group))
        assert time.monotonic() - start < 10
        raises(DesyncError, "rank", lambda group=group: dist.barrier(group=group))  # type: ignore[misc]
        dist.barrier()
        dist.destroy_process_group(group)


@part
def wrong_tensors() -> None:
    rows = torch.eye(3).to_sparse_csr()
    raises(TypeError, "sparse", lambda: dist.all_reduce(rows))
    raises(TypeError, "sparse", lambda: dist.broadcast(torch.eye(3).to_sparse(), 0))
    raises(TypeError, "meta", lambda: dist.all_reduce(torch.ones(2, device="meta")))
    raises(TypeError, "meta", lambda: dist.broadcast(torch.ones(2, device="meta"), 0))
    raises(TypeError, "pg_options", lambda: dist.new_group(pg_options="tcp"))


@part
def over_tcp() -> None:
    options: Any = collectives.torch.Options(transport="tcp")
    group = dist.new_group(pg_options=options)
    assert "tcp" in repr(group)
    x = torch.ones(100_000)
    dist.all_reduce(x, group=group)
    assert x[-1].item() == 3.0
    dist.destroy_process_group(group)


def main() -> None:
    worlds: list[Any] = []
    part(lambda: worlds.append(dist.group.WORLD))
    part.run(lambda: closed(worlds[0]))


def closed(world: Any) -> None:
    raises(Aborted, "closed", lambda: world.allreduce([torch.ones(1)]))
    raises(Aborted, "", lambda: world.send([torch.ones(1)], (RANK + 1) % SIZE, 99).wait())


if __name__ == "__main__":
    main()
