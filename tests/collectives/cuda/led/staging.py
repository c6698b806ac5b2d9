"""Calls through pinned host memory, in slices."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

import numpy as np

from collectives import Aborted, OpTimeout, PeerLost, TransportUnavailable
from collectives.calls.moves import Deadline
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.led.common import array, case, last_engine, start
from tests.collectives.cuda.led.numbers import expected, inputs_of, xor
from tests.collectives.cuda.runs_on import RANK, SIZE, Stream, driver


@case
def staged() -> None:
    """Where no rank can lead and there is no NCCL, large arrays pass through pinned memory in slices."""
    with start() as comm:
        for count in (4_000_001, 1_100_000, 10):
            inputs = inputs_of(np.float32, count)
            x = array(inputs[RANK])
            y = comm.allreduce(x)
            assert last_engine(comm) not in ("leader", "nccl")
            np.testing.assert_array_equal(y.get(), expected(inputs, "sum"))
            np.testing.assert_array_equal(x.get(), inputs[RANK])
            works = [comm.allreduce_async(x, "max") for _ in range(2)]
            for work in works:
                np.testing.assert_array_equal(work.wait().get(), expected(inputs, "max"))
            del work, works
            assert comm.allreduce(x, out=x) is x
            np.testing.assert_array_equal(x.get(), y.get())
        assert os.environ["WHY"] in comm.explain("allreduce", 64), comm.explain("allreduce", 64)
    assert driver.registered() == 0, driver.registered()


@case
def staged_calls() -> None:
    """Other collectives than allreduce in slices: even and uneven parts, large enough for slots to be used again."""
    from collectives.calls import slices, staged

    setattr(staged, "_SLOTS", 3)  # noqa: B010
    setattr(slices, "_LARGEST", 1 << 20)  # noqa: B010
    used: list[int] = []
    staging = staged.StagedCalls.staging

    def noted(self: Any, nbytes: int, *more: Any) -> Any:
        used.append(nbytes)
        return staging(self, nbytes, *more)

    setattr(staged.StagedCalls, "staging", noted)  # noqa: B010
    with start() as comm:
        comm.allreduce(array(np.ones(4)))  # here the ranks compare their devices
        for count in (2_500_003, 1_300_001):
            inputs = inputs_of(np.float32, count)
            x = array(inputs[RANK])
            for root in (0, SIZE - 1):
                total = comm.reduce(x, "max", root=root)
                assert (total is None) == (root != RANK)
                if total is not None:
                    np.testing.assert_array_equal(total.get(), np.max(inputs, axis=0))
                y = array(inputs[RANK])
                assert comm.broadcast(y, root=root) is y
                np.testing.assert_array_equal(y.get(), inputs[root])
                gathered = comm.gather(x, root=root)
                assert (gathered is None) == (root != RANK)
                if gathered is not None:
                    np.testing.assert_array_equal(gathered.get(), np.stack(inputs))
            out = array(np.zeros((SIZE, count), np.float32))
            assert comm.allgather(x, out=out) is out
            np.testing.assert_array_equal(out.get(), np.stack(inputs))
            np.testing.assert_array_equal(comm.scan(x, "max").get(), np.max(inputs[: RANK + 1], axis=0))
            before = np.max(inputs[:RANK], axis=0) if RANK else np.full(count, -np.inf, np.float32)
            np.testing.assert_array_equal(comm.exscan(x, "max").get(), before)
            assert comm.allreduce(x, "min", out=x) is x
            np.testing.assert_array_equal(x.get(), np.min(inputs, axis=0))
        inputs = [one.reshape(SIZE, -1) for one in inputs_of(np.int64, SIZE * 400_003)]
        x = array(inputs[RANK])
        np.testing.assert_array_equal(comm.reduce_scatter(x, "bxor").get()[0], xor(inputs)[RANK])
        np.testing.assert_array_equal(comm.alltoall(x).get(), np.stack([one[RANK] for one in inputs]))
        parts = [r * 300_000 + 1 for r in range(SIZE)]
        mine = [np.arange(2 * n, dtype=np.float64).reshape(n, 2) + r for r, n in enumerate(parts)]
        whole = np.concatenate(mine)
        np.testing.assert_array_equal(comm.allgatherv(array(mine[RANK])).get(), whole)
        gathered = comm.gatherv(array(mine[RANK]), root=SIZE - 1)
        assert (gathered is None) == (SIZE - 1 != RANK)
        if gathered is not None:
            np.testing.assert_array_equal(gathered.get(), whole)
        spread = comm.reduce_scatterv(array(whole * (RANK + 1)), parts, "max")
        np.testing.assert_array_equal(spread.get(), SIZE * mine[RANK])
        assert 0 < max(used) <= 3 * (2 << 20) + 4096, used  # input and output of three slices of 1 MiB
        work = comm.allgather_async(array(np.full(1_200_000, RANK, np.float32)))
        other = comm.broadcast_async(array(np.full(1_500_000, RANK, np.float32)), root=1)
        np.testing.assert_array_equal(other.wait().get()[::1000], 1)
        np.testing.assert_array_equal(work.wait().get()[:, ::1000].mean(axis=1), np.arange(SIZE))
        del work, other
        with raises(ValueError, "first axis"):
            comm.reduce_scatter(array(np.zeros((SIZE + 1, 1 << 20), np.float32)))
        with raises(ValueError, "root"):
            comm.broadcast(array(np.zeros(2 << 20, np.float32)), root=SIZE)
        freed = array(np.zeros(2 << 20, np.float32))
        freed.free()
        with raises(ValueError, "x (address 0x", "not memory of a CUDA device"):
            comm.broadcast(freed, root=0)
        stream = Stream()
        stream.begin_capture()
        with raises(ValueError, "captured"), stream:
            comm.allgather(out)
        stream.end_capture()  # the capture itself is not lost
    assert driver.registered() == 0, driver.registered()


def _fail_in_slice(number: int, error: BaseException | None) -> None:
    """On rank 1, the copy to the host of this slice is not in time, or a signal arrives meanwhile."""
    from collectives.calls import staged

    start_slice = staged._Run._start

    def failing(self: Any) -> None:
        if RANK == 1 and self.part_way.begun == number:
            setattr(staged._Run, "_start", start_slice)  # noqa: B010  # only once
            if error is not None:
                raise error
            self._deadline = Deadline(0.0)
            self._fetched = deque([NeverThere()])
        start_slice(self)

    setattr(staged._Run, "_start", failing)  # noqa: B010


class NeverThere:
    """A copy that a stream holds up."""

    def wait(self, timeout: float) -> bool:
        assert timeout == 0.0
        return False


@case
def staged_in_part() -> None:
    """A call that fails between its slices breaks the communicator: no slice is taken for one of another call."""
    _check_broken(OpTimeout, None, OpTimeout)


@case
def staged_without_memory() -> None:
    """Rank 1 cannot pin memory for a call, alone or in a list: no other rank is left waiting for it."""
    x = array(np.ones(2 << 20, np.float32))  # 8 MiB
    for name, given in (("allreduce", x), ("alltoallv", x), ("allreduce_many", [x, x])):
        comm = start(name=name)
        comm.allreduce(array(np.ones(4)))
        if RANK == 1:
            os.environ["STAND_IN_MOST_PINNED_MIB"] = "0"
        begun = time.monotonic()
        with raises(TransportUnavailable if RANK == 1 else PeerLost, "rank 1: ", "cuMemHostRegister", "full"):
            getattr(comm, name)(given, *[[1 << 20] * SIZE] * (name == "alltoallv"))
        assert time.monotonic() - begun < 5.0
        os.environ.pop("STAND_IN_MOST_PINNED_MIB", None)
        comm.close()


@case
def staged_interrupted() -> None:
    _check_broken(KeyboardInterrupt, KeyboardInterrupt(), Aborted if RANK == 1 else PeerLost)


def _check_broken(kind: type[BaseException], error: BaseException | None, shared: type[Exception]) -> None:
    with start() as comm:
        x = array(np.ones(4 << 20, np.float32))  # 16 slices
        comm.allreduce(array(np.ones(4)))
        np.testing.assert_array_equal(comm.allreduce(x).get()[::1000], SIZE)
        _fail_in_slice(3, error)
        begun = time.monotonic()
        if RANK == 1:
            with raises(kind):
                comm.allreduce(x)
        else:
            with raises(shared, "ended on rank 1 after 3 of 16 slices"):
                comm.allreduce(x)
        assert time.monotonic() - begun < 10.0
        for again in (x, np.ones(3)):
            with raises(shared, "ended on rank 1 after 3 of 16 slices"):
                comm.allreduce(again)


@case
def staged_again() -> None:
    """Memory is pinned once for calls that follow each other, whether blocking or not."""
    from collectives.calls import staged as module

    staged: Any = module
    with start() as comm:
        comm.allreduce(array(np.ones(4)))
        x = array(np.full(4 << 20, RANK, np.float32))
        comm.allreduce(x)
        pinned: list[int] = []
        new = staged.pinned

        def noted(memory: Any, nbytes: int, device: int, rank: int) -> Any:
            pinned.append(nbytes)
            return new(memory, nbytes, device, rank)

        staged.pinned = noted
        for _ in range(3):
            np.testing.assert_array_equal(comm.allreduce_async(x).wait().get()[::1000], SIZE * (SIZE - 1) / 2)
            np.testing.assert_array_equal(comm.allreduce(x, "max").get()[::1000], SIZE - 1)
        assert not pinned, pinned
        for _ in range(2):
            works = [comm.allreduce_async(x) for _ in range(3)]
            for work in works:
                np.testing.assert_array_equal(work.wait().get()[::1000], SIZE * (SIZE - 1) / 2)
        assert len(pinned) == 2, pinned
        del work, works
    assert driver.registered() == 0, driver.registered()
