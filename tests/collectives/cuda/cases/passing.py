"""Calls of groups in which only some ranks have their arrays on devices: large ones are copied while a call runs."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import collectives
from collectives import Aborted, CollectiveError, OpTimeout, PeerLost, Status
from collectives.calls import passing_many
from collectives.calls.moves import Deadline
from collectives.calls.passing import PassingCalls
from collectives.calls.passing_many import PassingMany
from collectives.native import _engine
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import ON_HOST, case, start
from tests.collectives.cuda.runs_on import ON_STAND_IN, RANK, SIZE, Gate, Stream, cupy, driver

ON_DEVICE = not ON_HOST and not _engine.why_no_cuda()  # what this rank passes to calls
COUNT = (3 << 20) // 2 + 7  # of float32: more than 4 MiB

passed: list[str] = []  # the calls whose arrays were copied while they ran
_prepare = PassingCalls.prepare


def _noted(self: PassingCalls, build: Callable[..., Any], *args: Any) -> Any:
    made = _prepare(self, build, *args)
    if made is not None:
        passed.append(build.__name__)
    return made


setattr(PassingCalls, "prepare", _noted)  # noqa: B010
_prepare_many = PassingMany.prepare


def _noted_many(self: PassingMany, *args: Any) -> Any:
    made = _prepare_many(self, *args)
    if made is not None:
        passed.append("allreduce_many")
    return made


setattr(PassingMany, "prepare", _noted_many)  # noqa: B010


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


def registered() -> int:
    """The registrations of host memory, which only the stand-in for the driver counts."""
    return int(driver.registered()) if ON_STAND_IN else 0


def numbers(shape: Any, dtype: Any = np.float32) -> list[Any]:
    """Of each rank, the same on all ranks; sums are exact."""
    random = np.random.default_rng(5)
    return [random.integers(0, 100, shape).astype(dtype) for _ in range(SIZE)]


@case
def mixed_reductions() -> None:
    with _start() as comm:
        # CuPy itself has no bfloat16 in all its versions.
        for dtype in (np.float32, np.int64, *((ml_dtypes.bfloat16,) if ON_STAND_IN else ())):
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
    assert registered() == 0, registered()


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
    assert registered() == 0, registered()


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
        passed.clear()
        np.testing.assert_array_equal(host(other), inputs[left])
        np.testing.assert_array_equal(host(y), inputs[right])
        np.testing.assert_array_equal(host(total), np.sum(inputs, axis=0))
        np.testing.assert_array_equal(host(late.wait()), np.stack(inputs))
        del work, late
    assert registered() == 0, registered()


LISTED = [(1 << 16,)] * 9 + [(3, 1 << 15), (), (0,), (1 << 18,), (1 << 20,)]  # buckets, and arrays of 1 and 4 MiB


def _listed() -> tuple[list[Any], list[Any]]:
    """This rank's arrays, and the sums of all ranks'."""
    every = [numbers(shape, dtype) for shape in LISTED for dtype in (np.float32, np.int32)[: 1 + (shape == (1 << 16,))]]
    return [array(inputs[RANK]) for inputs in every], [
        np.sum(inputs, axis=0, dtype=inputs[0].dtype) for inputs in every
    ]


def _check_list(results: list[Any], expected: list[Any]) -> None:
    assert passed == (["allreduce_many"] if ON_DEVICE else []), passed
    passed.clear()
    for result, one in zip(results, expected, strict=True):
        assert isinstance(result, np.ndarray) != ON_DEVICE
        np.testing.assert_array_equal(host(result), one)


@case
def mixed_many() -> None:
    """Lists: the next bucket is copied while one is reduced, and no more of them than memory is for."""
    steps: list[tuple[str, Any]] = []

    def note(kind: Any, name: str) -> None:
        call = getattr(kind, name)

        def noted(self: Any) -> None:
            steps.append((name, self))
            call(self)

        setattr(kind, name, noted)

    for kind in (passing_many._Bucket, passing_many._Large):
        note(kind, "fetch")
        note(kind, "unpack")
    passing_many._MOST_UNDER_WAY = 4 << 20  # type: ignore[misc]
    passing_many._LARGE = 2 << 20  # type: ignore[misc]
    with _start() as comm:
        arrays, expected = _listed()
        _check_list(comm.allreduce_many(arrays, bucket_bytes=1 << 20), expected)
        if ON_DEVICE:
            ordered = [step for name, step in steps if name == "fetch"]
            assert {type(step) for step in ordered} == {passing_many._Bucket, passing_many._Large}
            assert steps.index(("fetch", ordered[1])) < steps.index(("unpack", ordered[0]))
            for i in range(len(steps)):
                held = {step for name, step in steps[: i + 1] if name == "fetch"}
                held -= {step for name, step in steps[: i + 1] if name == "unpack"}
                assert len(held) <= 1 or sum(step.nbytes for step in held) <= 4 << 20
        steps.clear()
        work = comm.allreduce_many_async(arrays, bucket_bytes=1 << 20)
        comm.barrier()
        _check_list(work.wait(), expected)
        assert comm.allreduce_many(arrays, out=arrays) == arrays
        _check_list(arrays, expected)
        results = [array(np.zeros_like(one)) for one in expected]
        again = _listed()[0]
        with comm.group():
            comm.allreduce_many(again, out=results)
        _check_list(results, expected)
        used = registered()
        comm.allreduce_many(again, out=results)
        assert registered() == used, "memory was not used again"
        passed.clear()
        with raises(ValueError, "memory", "of the list"):
            comm.allreduce_many(again, out=[again[2], results[1], *again[2:]])
        short = [array(np.ones(3)), array(np.ones((), np.int8))]
        for result in comm.allreduce_many(short):
            assert np.all(host(result) == SIZE)
        assert not passed, "small lists are copied before and after the call"
        del work
    passing_many._MOST_UNDER_WAY = 64 << 20  # type: ignore[misc]
    steps.clear()
    assert registered() == 0, registered()


class NeverThere:
    """A copy that a stream holds up."""

    def wait(self, timeout: float) -> bool:
        return timeout > 0.0


@case
def mixed_many_in_part() -> None:
    """A list that fails between its buckets breaks the communicator: no bucket is taken for one of another call."""
    pack, packed = passing_many._Bucket.pack, []

    def late(self: Any) -> None:
        packed.append(self)
        if len(packed) == 3:
            self._arriving, self._deadline = NeverThere(), Deadline(0.0)
        pack(self)

    passing_many._Bucket.pack = late  # type: ignore[method-assign]
    comm = _start()
    arrays, _ = _listed()
    begun = time.monotonic()
    with raises(OpTimeout, "stream is held up" if ON_DEVICE else "ended on rank 0 after 2 of"):
        comm.allreduce_many(arrays, bucket_bytes=1 << 20)
    with raises(OpTimeout, "ended on rank 0 after 2 of", "buckets had begun"):
        comm.allreduce(np.ones(3))
    assert time.monotonic() - begun < 10.0
    comm.close()


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
        dropped = array(inputs[RANK])
        kept = weakref.ref(dropped)
        work = comm.allreduce_async(dropped)
        del dropped
        assert not ON_DEVICE or kept() is not None, "the array was not kept while it is copied"
        np.testing.assert_array_equal(host(work.wait()), np.sum(inputs, axis=0))
        used = registered()
        for _ in range(3):
            comm.allreduce(x)
        assert registered() == used, "memory was not used again"
        gate, held = Gate(), Stream()
        with held:
            if ON_DEVICE:
                gate.hold(held)
            work = comm.allreduce_async(x, algorithm="ring")  # which need not wait until all is copied
            time.sleep(0.2)
            assert not (ON_DEVICE and work.done())  # the other rank may come later
            gate.open()
            np.testing.assert_array_equal(host(work.wait()), np.sum(inputs, axis=0))
        if ON_DEVICE:
            stream = Stream()
            small, pair, large = array(np.ones(4)), array(np.ones(SIZE)), array(np.ones((SIZE, 1 << 20)))
            stream.begin_capture()
            with stream:
                for refused in (
                    lambda: comm.allreduce(x),
                    lambda: comm.allreduce(small),
                    lambda: comm.allreduce(small, np.add),
                    lambda: comm.allreduce(np.ones(4), out=small),
                    lambda: comm.allreduce_many([small, small]),
                    lambda: comm.recv(small, 1),
                ):
                    with raises(ValueError, "captured"):
                        refused()
                for rows in (pair, large):
                    with raises(ValueError, "captured"):  # and not before the other rank can learn of it
                        comm.scatter(rows)
            stream.end_capture()  # the capture itself is not lost
        else:
            for _ in range(2):
                with raises(Aborted, "rank 0"):
                    comm.scatter(None)
        comm.barrier()
    assert registered() <= 1, registered()  # the gate's


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
    assert registered() == 0, registered()
