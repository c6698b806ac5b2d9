"""Calls of groups in which only some ranks have their arrays on devices: large ones are copied while a call runs."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import collectives
from collectives import CollectiveError, OpTimeout, PeerLost, Status
from collectives.calls.passing import PassingCalls
from collectives.native import _engine
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import RANK, SIZE, Gate, Stream, case, cupy, driver, start

ON_DEVICE = not _engine.why_no_cuda()  # what this rank passes to calls
COUNT = (3 << 20) // 2 + 7  # of float32: more than 4 MiB

passed: list[str] = []  # the calls whose arrays were copied while they ran
_prepare = PassingCalls.prepare


def _noted(self: PassingCalls, build: Callable[..., Any], *args: Any) -> Any:
    made = _prepare(self, build, *args)
    if made is not None:
        passed.append(build.__name__)
    return made


setattr(PassingCalls, "prepare", _noted)  # noqa: B010


def _start(**options: Any) -> collectives.Communicator:
    return start(transport=os.environ.get("TRANSPORT", "auto"), **options)


def array(values: Any) -> Any:
    return cupy.asarray(values) if ON_DEVICE else np.array(values)


def host(x: Any) -> Any:
    return x if isinstance(x, np.ndarray) else x.get()


def check(name: str, x: Any, expected: Any) -> None:
    """The result is right, where it has to be, and came there while the call ran if it is on a device."""
    if isinstance(x, np.ndarray):
        assert not passed, passed
    else:
        assert passed and set(passed) == {name}, (name, passed)
    np.testing.assert_array_equal(host(x), expected, err_msg=name)
    passed.clear()


def numbers(shape: Any, dtype: Any = np.float32) -> list[Any]:
    """Of each rank, the same on all ranks; sums are exact."""
    random = np.random.default_rng(5)
    return [random.integers(0, 100, shape).astype(dtype) for _ in range(SIZE)]


@case
def mixed_reductions() -> None:
    with _start() as comm:
        for dtype in (np.float32, np.int64, ml_dtypes.bfloat16):
            inputs = numbers(4 * COUNT // np.dtype(dtype).itemsize, dtype)
            x = array(inputs[RANK])
            check("allreduce", comm.allreduce(x, "max"), np.maximum.reduce(inputs))
            out = array(np.zeros_like(inputs[0]))
            assert comm.allreduce(x, "min", out=out) is out
            check("allreduce", out, np.minimum.reduce(inputs))
        inputs = numbers(COUNT)
        x = array(inputs[RANK])
        for algorithm in ("ring", "two_shot", "tree", "auto"):
            check("allreduce", comm.allreduce(x, algorithm=algorithm), np.sum(inputs, axis=0))
        y = array(inputs[RANK])
        assert comm.allreduce(y, out=y) is y
        check("allreduce", y, np.sum(inputs, axis=0))
        for root in range(SIZE):
            total = comm.reduce(x, root=root)
            assert (total is None) == (root != RANK)
            if total is not None:
                check("reduce", total, np.sum(inputs, axis=0))
            passed.clear()
        check("scan", comm.scan(x), np.sum(inputs[: RANK + 1], axis=0))
        y = array(inputs[RANK])
        before = np.sum(inputs[:RANK], axis=0) if RANK else np.zeros(COUNT, np.float32)
        check("exscan", comm.exscan(y, out=y), before)
        rows = numbers((SIZE, 1 << 20))
        check("reduce_scatter", comm.reduce_scatter(array(rows[RANK])), np.sum(rows, axis=0)[RANK : RANK + 1])
        counts = [500_000 * (rank + 1) for rank in range(SIZE)]
        rows = numbers((sum(counts), 2))
        mine = slice(sum(counts[:RANK]), sum(counts[: RANK + 1]))
        check("reduce_scatterv", comm.reduce_scatterv(array(rows[RANK]), counts), np.sum(rows, axis=0)[mine])
        np.testing.assert_array_equal(host(comm.allreduce(array(np.ones(3)))), np.full(3, SIZE))
        assert not passed, "small arrays are copied before and after the call"
        np.testing.assert_array_equal(host(comm.allreduce(x, np.add)), np.sum(inputs, axis=0))
        assert not passed, "op is a function"
    assert driver.registered() == 0, driver.registered()


@case
def mixed_moves() -> None:
    with _start() as comm:
        inputs = numbers(COUNT)
        x = array(inputs[RANK])
        for root in range(SIZE):
            for algorithm in ("auto", "binomial", "scatter_allgather"):
                y = array(inputs[RANK])
                assert comm.broadcast(y, root=root, algorithm=algorithm) is y
                check("broadcast", y, inputs[root])
            gathered = comm.gather(x, root=root)
            assert (gathered is None) == (root != RANK)
            if gathered is not None:
                check("gather", gathered, np.stack(inputs))
            passed.clear()
        check("allgather", comm.allgather(x), np.stack(inputs))
        rows = numbers((SIZE, 1 << 20), np.int32)
        check("alltoall", comm.alltoall(array(rows[RANK])), np.stack([one[RANK] for one in rows]))
        parts = [np.full((600_000 * (rank + 1), 2), rank, np.float32) for rank in range(SIZE)]
        check("allgatherv", comm.allgatherv(array(parts[RANK])), np.concatenate(parts))
        gathered = comm.gatherv(array(parts[RANK]), root=SIZE - 1)
        if gathered is not None:
            check("gatherv", gathered, np.concatenate(parts))
        passed.clear()
        # Every rank sends rank r as many rows as that rank's number tells.
        counts = [700_000 * (rank + 1) for rank in range(SIZE)]
        leaving = np.repeat(np.arange(SIZE) + 10.0 * RANK, counts)
        coming = np.concatenate([np.full(counts[RANK], RANK + 10.0 * rank) for rank in range(SIZE)])
        check("alltoallv", comm.alltoallv(array(leaving), counts), coming)
        for root in range(SIZE):  # other ranks have no array, so their results are in host memory
            given = array(rows[root]), array(leaving - 10.0 * RANK)
            for name, whole, expected in (
                ("scatter", given[0], rows[root][RANK]),
                ("scatterv", given[1], np.full(counts[RANK], float(RANK))),
            ):
                extra = [counts] if name == "scatterv" else []
                result = getattr(comm, name)(whole if root == RANK else None, *extra, root=root)
                check(name, result, expected)
                assert (root == RANK and ON_DEVICE) == (not isinstance(result, np.ndarray))
    assert driver.registered() == 0, driver.registered()


@case
def mixed_messages() -> None:
    with _start() as comm:
        right, left, status = (RANK + 1) % SIZE, (RANK - 1) % SIZE, Status()
        inputs = numbers(COUNT)
        x, y = array(inputs[RANK]), array(np.zeros(COUNT + 9, np.float32))
        work = comm.send_async(x, right)
        assert comm.recv(y, left, status=status) is y
        work.wait()
        assert (status.source, status.count) == (left, COUNT)
        np.testing.assert_array_equal(host(y), [*inputs[left], *np.zeros(9)])  # the rest is as it was
        assert sorted(passed) == (["recv", "send"] if ON_DEVICE else [])
        passed.clear()
        y = array(np.zeros(COUNT, np.float32))
        comm.sendrecv(x, right, y, left)
        check("sendrecv", y, inputs[left])
        comm.sendrecv(y, left, y, right)  # one array: it is sent before it is overwritten
        check("sendrecv", y, inputs[RANK])
        work = comm.sendrecv_async(x, right, y, left)
        work.wait()
        check("sendrecv", y, inputs[left])
        other = array(np.zeros(COUNT, np.float32))
        with comm.group():
            comm.send(x, right)
            comm.recv(other, left)
            comm.sendrecv(x, left, y, right)
            total = comm.allreduce(x, out=array(np.zeros(COUNT, np.float32)))
            late = comm.allgather_async(x)
        assert not ON_DEVICE or passed == ["send", "recv", "sendrecv", "allreduce", "allgather"], passed
        np.testing.assert_array_equal(host(other), inputs[left])
        np.testing.assert_array_equal(host(y), inputs[right])
        np.testing.assert_array_equal(host(total), np.sum(inputs, axis=0))
        np.testing.assert_array_equal(host(late.wait()), np.stack(inputs))
        del work, late
    assert driver.registered() == 0, driver.registered()


@case
def mixed_in_background() -> None:
    """Many calls in progress; memory is used again; a stream that is held up holds up the call, and no other rank's."""
    with _start() as comm:
        inputs = numbers(COUNT)
        x = array(inputs[RANK])
        for _ in range(3):
            works = [comm.allreduce_async(x, op) for op in ("sum", "max")] + [comm.allgather_async(x)]
            np.testing.assert_array_equal(host(works[0].wait()), np.sum(inputs, axis=0))
            np.testing.assert_array_equal(host(works[1].wait()), np.maximum.reduce(inputs))
            np.testing.assert_array_equal(host(works[2].wait()), np.stack(inputs))
        used = driver.registered()
        for _ in range(3):
            comm.allreduce(x)
        assert driver.registered() == used, "memory was not used again"
        gate, held = Gate(), Stream()
        with held:
            if ON_DEVICE:
                gate.hold(held)
            work = comm.allreduce_async(x, algorithm="ring")  # which need not wait until all is copied
            time.sleep(0.2)
            assert not work.done()
            gate.open()
            np.testing.assert_array_equal(host(work.wait()), np.sum(inputs, axis=0))
        if ON_DEVICE:
            stream = Stream()
            stream.begin_capture()
            with raises(ValueError, "captured"), stream:
                comm.allreduce(x)
            stream.end_capture()
        comm.barrier()
    assert driver.registered() <= 1, driver.registered()  # the gate's


@case
def mixed_held() -> None:
    """A stream that is held up for too long: the call fails on all ranks, and says why where the stream is."""
    comm = _start(timeout=1.0 if ON_DEVICE else 5.0)
    gate, held = Gate(), Stream()
    x = array(np.ones(COUNT, np.float32))
    with held:
        if ON_DEVICE:
            gate.hold(held)
        with raises(OpTimeout if ON_DEVICE else CollectiveError, "stream is held up" if ON_DEVICE else ""):
            comm.allreduce(x, algorithm=os.environ["ALGORITHM"])
        gate.open()
    comm.close()


@case
def mixed_killed() -> None:
    comm = _start(timeout=30.0)
    x = array(np.ones(COUNT, np.float32))
    comm.allreduce(x)
    if RANK == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with raises(PeerLost, "rank 1"):
        for _ in range(2):
            comm.allreduce(x)
    assert time.monotonic() - begun < 3.0
    comm.close()
    gc.collect()  # the error refers to the call
    assert driver.registered() == 0, driver.registered()
