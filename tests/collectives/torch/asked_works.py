"""Works, futures and receives from any rank, as torch's tools and programs use them: parts of `worker_asked`.

Invariant: as that of `parts`.
"""

from __future__ import annotations

import gc
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collectives.native.errors import Aborted, DesyncError, OpTimeout
from tests.collectives.torch.parts import Parts, raises

RANK, SIZE = int(os.environ["COLLECTIVES_RANK"]), int(os.environ["COLLECTIVES_SIZE"])
part = Parts()
SOON = timedelta(seconds=0.3)


def ones(value: float = 1.0, n: int = 3) -> Any:
    return torch.full((n,), float(value))


def forms(*calls: Any) -> tuple[Any, ...]:
    return calls


# --- works and futures


@part
def a_future_is_complete_after_the_wait() -> None:
    for _ in range(200):
        work = dist.all_reduce(ones(), async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done()
        assert dist.all_reduce(ones(), async_op=True).get_future().wait()[0].tolist() == [3.0] * 3
    work = dist.all_reduce(ones(), async_op=True)
    work.wait()
    assert work.get_future().done()


@part
def callbacks_that_wait_for_other_futures() -> None:
    def again(depth: int, future: Any) -> Any:
        x = future.value()[0]
        if depth:
            inner = dist.all_reduce(x / 3, async_op=True).get_future()
            return inner.then(lambda f: again(depth - 1, f)).wait()
        return x

    for depth in (1, 5):
        chain = dist.all_reduce(ones(RANK), async_op=True).get_future().then(lambda f, d=depth: again(d, f))
        assert chain.wait().tolist() == [3.0] * 3
    behind = [dist.all_reduce(ones(i), async_op=True) for i in range(5)]
    first = behind[0].get_future().then(lambda _: behind[4].get_future().wait()[0])
    assert first.wait().tolist() == [12.0] * 3


@part
def works_of_which_torch_keeps_its_own_half() -> None:
    works = [dist.all_reduce(x := ones(RANK), async_op=True)]
    kept = works[0].boxed()
    column = torch.full((3, 2), float(RANK))[:, 0]  # is copied to and fro
    works.append(dist.all_reduce(column, async_op=True))
    other = works[1].boxed()
    works.clear()
    gc.collect()
    dist.Work.unbox(kept).wait()
    dist.Work.unbox(other).wait()
    assert x.tolist() == [3.0] * 3 == column.tolist()
    group = dist.new_group()
    if RANK == 0:
        opts = dist.BarrierOptions()
        opts.timeout = SOON
        late = group.barrier(opts).boxed()
        gc.collect()
        raises(OpTimeout, "rank", lambda: dist.Work.unbox(late).wait())
    dist.barrier()
    dist.destroy_process_group(group)


@part
def an_error_is_raised_each_time() -> None:
    out, splits = torch.empty(SIZE), [1] * SIZE
    splits[(RANK + 1) % SIZE] = 2 if RANK == 0 else 1  # rank 1 gets more than it expects
    work = dist.all_to_all_single(out, torch.ones(sum(splits)), [1] * SIZE, splits, async_op=True)
    for _ in range(2):
        if RANK == 1:
            raises(DesyncError, "room", work.wait)
            assert not work.is_success() and isinstance(work.exception(), DesyncError)
        else:
            work.wait()


@part
def deadlines_of_futures() -> None:
    group: Any = dist.new_group()
    group.set_timeout(SOON)
    if RANK == 0:
        future = dist.all_reduce(ones(), group=group, async_op=True).get_future()
        raises(OpTimeout, "rank", future.wait)
        chained = dist.barrier(group, async_op=True).get_future().then(lambda f: f.value())
        raises(RuntimeError, "", chained.wait)
    dist.barrier()
    dist.destroy_process_group(group)


# --- receiving from any rank


@part
def receive_from_any_rank() -> None:
    """Rank 0 hears from the others, whose messages differ in size and in the moment in which they come."""
    if RANK == 0:
        got: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(4):
            x = ones(-1, 2)
            source = dist.recv(x)
            got[source].append(x[0].item())
        assert got == {1: [10.0, 11.0], 2: [20.0, 21.0]}  # those of one rank in their order
        dist.send(ones(), 1)  # from here on only rank 1 sends, and afterwards only rank 2
        larger = ones(-1, 5)
        assert dist.recv(larger) == 1 and larger.tolist() == [5.0] * 5
        dist.send(ones(), 2)
        whole = torch.zeros(4, 3, dtype=torch.int64).t()  # is copied to
        work: Any = dist.irecv(whole)
        work.wait()
        assert work.source_rank() == 2 and whole.tolist() == [[7] * 4] * 3
        dist.recv(ones(), 2)  # from a named one, after that
    else:
        for i in range(2):
            dist.send(ones(10 * RANK + i, 2), 0)
        dist.recv(ones(), 0)
        dist.send(ones(5, 5) if RANK == 1 else torch.full((3, 4), 7), 0)
        if RANK == 2:
            dist.send(ones(), 0)
    dist.barrier()


@part
def receives_are_matched_in_their_order() -> None:
    if RANK == 0:
        x, y, z = (ones(-1, 1) for _ in range(3))
        works: list[Any] = [dist.irecv(x, tag=3), dist.irecv(y, 1, tag=3), dist.irecv(z, tag=3)]
        dist.barrier()
        dist.barrier()
        for work in works:
            work.wait()
        assert (x.item(), y.item(), z.item()) == (1.0, 2.0, 3.0)
        assert [work.source_rank() for work in works] == [1, 1, 2]
    else:
        dist.barrier()
        if RANK == 1:
            dist.send(ones(1, 1), 0, tag=3)
            dist.send(ones(2, 1), 0, tag=3)
        dist.barrier()
        if RANK == 2:
            dist.send(ones(3, 1), 0, tag=3)


@part
def who_receives_from_any_rank_waits_no_longer_than_it_may() -> None:
    group: Any = dist.new_group()
    group.set_timeout(SOON)
    if RANK == 0:
        raises(OpTimeout, "", lambda: dist.recv(ones(), group=group))
    dist.barrier()
    other: Any = dist.new_group()
    late: Any = dist.irecv(ones(), group=other) if RANK == 0 else None
    dist.barrier()
    dist.destroy_process_group(other)
    if RANK == 0:
        raises(Aborted, "destroyed", late.wait)
    dist.destroy_process_group(group)
