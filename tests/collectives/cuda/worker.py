"""The cases that ranks run, on the stand-ins or on a device; the name of a case is the argument.

On a device, with the real CuPy, those that use a gate or count registrations cannot run.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import collectives
from collectives import Aborted, DesyncError, OpTimeout, PeerLost, TransportUnavailable
from collectives.calls.streamed import StreamCalls
from collectives.core import nccl as core_nccl

ON_STAND_IN = "STAND_IN_MODULES" in os.environ
if ON_STAND_IN:
    sys.path.insert(0, os.environ["STAND_IN_MODULES"])
import cupy  # noqa: E402
from cupy.cuda import Device, Stream  # noqa: E402

if ON_STAND_IN:
    from cupy.cuda import Gate, driver

RANK = int(os.environ["COLLECTIVES_RANK"])
SIZE = int(os.environ["COLLECTIVES_SIZE"])
SOON = 2.0  # seconds in which survivors name a rank that was killed

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    for part in parts:
        assert part in str(caught.value), f"{part!r} is not in {caught.value}"


def start(**options: Any) -> collectives.Communicator:
    Device(int(os.environ.get("WORKER_DEVICE", RANK))).use()
    return collectives.init(timeout=options.pop("timeout", 20.0), **options)


def engines(comm: collectives.Communicator) -> list[str]:
    return [o["engine"] for o in comm.dump()["operations"]]


@case
def results() -> None:
    """All collectives give what NumPy computes, where the arrays are."""
    with start(transport="nccl") as comm:
        # CuPy itself has no bfloat16 in all its versions.
        sixteen = [ml_dtypes.bfloat16] if ON_STAND_IN else [np.float16]
        for dtype in (np.float32, np.float64, np.int8, np.uint32, np.int64, np.complex64, *sixteen):
            inputs = [(np.arange(6) % 5 + r).astype(dtype) for r in range(SIZE)]
            x = cupy.asarray(inputs[RANK])
            total = np.sum(inputs, axis=0, dtype=dtype)
            np.testing.assert_array_equal(comm.allreduce(x).get(), total)
            np.testing.assert_array_equal(comm.allgather(x).get(), np.stack(inputs))
            half = np.split(total, SIZE)[RANK]
            np.testing.assert_array_equal(comm.reduce_scatter(x).get(), half)
            reduced = comm.reduce(x, root=1)
            assert (reduced is None) == (RANK != 1)
            if reduced is not None:
                np.testing.assert_array_equal(reduced.get(), total)
            gathered = comm.gather(x, root=0)
            assert (gathered is None) == (RANK != 0)
            if gathered is not None:
                np.testing.assert_array_equal(gathered.get(), np.stack(inputs))
            parts = [np.split(one, SIZE)[RANK] for one in inputs]
            np.testing.assert_array_equal(comm.alltoall(x).get(), np.concatenate(parts))
            np.testing.assert_array_equal(x.get(), inputs[RANK])
            assert comm.broadcast(x, root=1) is x
            np.testing.assert_array_equal(x.get(), inputs[1])
        ours = {o["engine"] for o in comm.dump()["operations"] if o["collective"] == "alltoall"}
        assert ours == {"nccl"}, ours


@case
def ops() -> None:
    with start() as comm:
        x = cupy.asarray(np.array([1.0, 2.0, 3.0]) + RANK)
        for op, value in (("sum", [3, 5, 7]), ("prod", [2, 6, 12]), ("min", [1, 2, 3]), ("max", [2, 3, 4])):
            np.testing.assert_array_equal(comm.allreduce(x, op).get(), value)
        np.testing.assert_array_equal(comm.allreduce(x, "avg").get(), [1.5, 2.5, 3.5])
        flags = cupy.asarray(np.array([RANK == 0, True, False]))
        np.testing.assert_array_equal(comm.allreduce(flags, "lor").get(), [True, True, False])
        np.testing.assert_array_equal(comm.allreduce(flags, "land").get(), [False, True, False])
        np.testing.assert_array_equal(comm.allreduce(flags).get(), [True, True, False])
        assert set(engines(comm)[-3:]) == {"nccl"}
        # What NCCL lacks runs on a copy in host memory.
        short = cupy.asarray(np.array([1, 2], np.int16))
        np.testing.assert_array_equal(comm.allreduce(short).get(), [2, 4])
        bits = cupy.asarray(np.array([1 << RANK], np.int32))
        np.testing.assert_array_equal(comm.allreduce(bits, "bor").get(), [3])
        np.testing.assert_array_equal(comm.scan(x).get(), np.array([1.0, 2.0, 3.0]) * (RANK + 1) + RANK)
        assert "nccl" not in engines(comm)[-3:]
        with raises(TypeError, "avg"):
            comm.allreduce(bits, "avg")
        with raises(ValueError, "unknown op", "sum"):
            comm.allreduce(bits, "sun")


@case
def sizes() -> None:
    """Empty arrays, large ones, in place, and many at once."""
    with start() as comm:
        empty = cupy.asarray(np.empty(0, np.float32))
        assert comm.allreduce(empty).shape == (0,)
        large = cupy.asarray(np.full(300_000, RANK + 1.0, np.float32))
        assert comm.allreduce(large, out=large) is large
        np.testing.assert_array_equal(large.get(), np.full(300_000, 3.0))
        works = []
        for i in range(1500):
            works.append(comm.allreduce_async(cupy.asarray(np.full(4, i, np.float32))))
        for i, work in enumerate(works):
            np.testing.assert_array_equal(work.wait().get(), np.full(4, 2.0 * i))
        states = {o["state"] for o in comm.dump()["operations"]}
        assert states == {"done"}, states


@case
def order() -> None:
    """The call waits for nothing on the host; a held stream holds what is in it, and nothing else."""
    with start() as comm:
        held, free, gate = Stream(), Stream(), Gate()
        x = cupy.asarray(np.ones(4, np.float32))
        comm.allreduce(x)
        comm.synchronize()
        late = cupy.asarray(np.zeros(4, np.float32))
        gate.hold(held)
        work = comm.allreduce_async(x, out=late, stream=held)
        assert not work.done()
        with raises(OpTimeout, "still running"):
            work.wait(0.05)
        np.testing.assert_array_equal(comm.allreduce(np.full(3, RANK)), [1, 1, 1])  # on the host, after it
        with raises(OpTimeout, "synchronize waited", "1 of the operations"):
            comm.synchronize(timeout=0.05)
        comm.synchronize(free)  # nothing is in this stream
        gate.open()
        comm.synchronize(held)
        assert work.done()
        np.testing.assert_array_equal(late.get(), np.full(4, 2.0))
        # The current stream of the array's library is used, and a stream that is given waits for it.
        with free:
            second = Gate()
            second.hold(free)
            work = comm.allreduce_async(x, stream=held)
            assert not work.done()
            second.open()
            work.wait()
        # Calls in the background come first, so ranks number their calls equally.
        before = [comm.allreduce_async(np.full(1000, i)) for i in range(5)]
        result = comm.allreduce(x)
        np.testing.assert_array_equal(result.get(), np.full(4, 2.0))
        assert [int(w.wait()[0]) for w in before] == [0, 2, 4, 6, 8]
        sequences = [o["sequence"] for o in comm.dump()["operations"]]
        assert sequences == sorted(sequences)


@case
def plans() -> None:
    with start() as comm:
        x, y = cupy.asarray(np.full(4, RANK + 1.0)), cupy.asarray(np.zeros(4))
        plan = comm.allreduce_plan(x, out=y)
        for value in (1.0, 5.0):
            x.set(np.full(4, value))
            assert plan() is y
            np.testing.assert_array_equal(y.get(), np.full(4, 2 * value))
            comm.barrier()
        with raises(ValueError, "group() block"), comm.group():
            comm.allreduce(x, out=y)


@case
def groups() -> None:
    """Communicators from others have a communicator of NCCL each, and free what they had."""
    with start() as comm:
        x = cupy.asarray(np.full(4, RANK + 1.0))
        comm.allreduce(x)
        comm.synchronize()
        before = driver.registered()
        for _ in range(3):
            with comm.dup() as other:
                np.testing.assert_array_equal(other.allreduce(x).get(), np.full(4, 3.0))
        pair = comm.split(0, key=-RANK)
        assert pair is not None and pair.rank == SIZE - 1 - RANK
        root = 0
        y = cupy.asarray(np.full(2, float(pair.rank)))
        pair.broadcast(y, root)
        np.testing.assert_array_equal(y.get(), [0.0, 0.0])
        pair.close()
        assert driver.registered() == before, (driver.registered(), before)
    assert driver.registered() == 0, driver.registered()


@case
def alone() -> None:
    """One rank."""
    with start(transport="nccl") as comm:
        x = cupy.asarray(np.arange(3.0))
        np.testing.assert_array_equal(comm.allreduce(x, "avg").get(), [0, 1, 2])
        with raises(TypeError, "host memory", 'transport="auto"'):
            comm.allreduce(np.ones(3))


@case
def explained() -> None:
    with start() as comm:
        assert "on CUDA     nccl: every rank" in comm.explain("allreduce", 1024)
        text = comm.explain("allreduce", 1024, "int16")
        assert "on CUDA     staging" in text and "not         nccl: NCCL has no integers of 16 bits" in text, text
        assert "NCCL does not run scan" in comm.explain("scan", 1024)
        comm.allreduce(cupy.asarray(np.ones(3)))
        assert f", on device {RANK}" in comm.explain("allreduce", 1024)


@case
def asked() -> None:
    """What the table and arguments choose."""
    with start(table=os.environ.get("TABLE")) as comm:
        x = cupy.asarray(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, 2.0))
        assert engines(comm)[-1] != "nccl"
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="nccl").get(), np.full(4, 2.0))
        assert engines(comm)[-1] == "nccl"
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="ring").get(), np.full(4, 2.0))
        assert engines(comm)[-1] != "nccl"
        with raises(ValueError, "cannot run this call", "16 bits"):
            comm.allreduce(cupy.asarray(np.ones(2, np.int16)), algorithm="nccl")


@case
def deterministic() -> None:
    with start(deterministic=True) as comm:
        np.testing.assert_array_equal(comm.allreduce(cupy.asarray(np.ones(4))).get(), np.full(4, 2.0))
        assert "nccl" not in engines(comm)
        assert "deterministic" in comm.explain("allreduce", 64)


@case
def bad_input() -> None:
    """Each is refused with a clear error, before NCCL sees it, and the communicator goes on."""
    with start() as comm:
        good = cupy.asarray(np.ones(4, np.float32))
        comm.allreduce(good)
        freed = cupy.asarray(np.ones(4, np.float32))
        freed.free()
        with raises(ValueError, "x (address 0x", "not memory of a CUDA device"):
            comm.allreduce(freed, out=good)  # a new array for the result could get the address
        host = cupy.asarray(np.ones(4, np.float32))
        elsewhere = np.ones(4, np.float32)
        host._address = elsewhere.ctypes.data
        with raises(ValueError, "not memory of a CUDA device"):
            comm.allreduce(host, out=good)
        with Device((RANK + 1) % 8):
            other = cupy.asarray(np.ones(4, np.float32))
            foreign = Stream()
        with raises(ValueError, f"device {(RANK + 1) % 8}", f"rank {RANK}"):
            comm.allreduce(other)
        with raises(ValueError, "x is on device", "out on device"):
            comm.allreduce(good, out=other)
        with raises(ValueError, "not one of device"):
            comm.allreduce(good, stream=foreign)
        with raises(ValueError, "host memory"):
            comm.allreduce(good, out=np.ones(4, np.float32))
        with raises(ValueError, "x is in host memory"):
            comm.allreduce(np.ones(4, np.float32), out=good)
        with raises(ValueError, "not contiguous"):
            comm.allreduce(cupy.ndarray((2, 2), np.float32, strides=(4, 8)))
        with raises(ValueError, "out is read-only"):
            comm.allreduce(good, out=cupy.ndarray((4,), np.float32, writable=False))
        with raises(ValueError, "shape"):
            comm.allreduce(good, out=cupy.empty((5,)))
        with raises(ValueError, "dtype"):
            comm.allreduce(good, out=cupy.empty((4,), np.float64))
        with raises(ValueError, "divides the first axis"):
            comm.reduce_scatter(cupy.empty((SIZE + 1,)))
        with raises(TypeError, "stream is a str"):
            comm.allreduce(good, stream="mine")
        with raises(ValueError, "no handle"):
            comm.allreduce(good, stream=-3)
        with raises(ValueError, "not on a CUDA device"):
            comm.allreduce(np.ones(3), stream=Stream())
        gone = Stream()
        gone.destroy()
        with raises(TransportUnavailable, "does not exist any more"):
            comm.allreduce(good, stream=gone)
        captured = Stream()
        captured.capture(True)
        with raises(ValueError, "captured"):
            comm.allreduce(good, stream=captured)
        captured.capture(False)
        with captured:
            np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(4, 2.0))


@case
def captured_first() -> None:
    """A first call in a captured stream is refused on all ranks, and nothing is lost."""
    with start() as comm:
        x, stream = cupy.asarray(np.ones(4)), Stream()
        if RANK == 1:
            stream.capture(True)
            with raises(ValueError, "captured"):
                comm.allreduce(x, stream=stream)
            stream.capture(False)
        else:
            with raises(Aborted, "rank 1", "captured"):
                comm.allreduce(x, stream=stream)
        with stream:
            np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, 2.0))


@case
def shared_device() -> None:
    """Two ranks on one device: through host memory, and all ranks say why."""
    Device(0).use()
    with collectives.init(timeout=20.0) as comm:
        x = cupy.asarray(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, 2.0))
        assert engines(comm)[-1] != "nccl"
        assert "use one device" in comm.explain("allreduce", 64)
    second = collectives.init(timeout=20.0, transport="nccl", name="second")
    with raises(TransportUnavailable, "use one device", "CUDA_VISIBLE_DEVICES"):
        second.allreduce(x)
    second.close()


@case
def refused() -> None:
    """NCCL cannot be used on some rank: all go through host memory, and say why."""
    with start() as comm:
        np.testing.assert_array_equal(comm.allreduce(cupy.asarray(np.ones(4))).get(), np.full(4, 2.0))
        assert "nccl" not in engines(comm)
        text = comm.explain("allreduce", 64)
        assert os.environ["WHY"] in text, text


@case
def refused_alone() -> None:
    """The same where nothing else may run: all ranks raise the same."""
    with raises(TransportUnavailable, os.environ["WHY"]), start(transport="nccl") as comm:
        comm.allreduce(cupy.asarray(np.ones(4)))


@case
def late() -> None:
    """A rank that makes no call is named at the deadline; the stream is free afterwards."""
    comm = start(timeout=1.5)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x)
    comm.synchronize()
    if RANK == 1:
        time.sleep(4)
        with raises(OpTimeout, "rank 1", "not begun"):
            comm.allreduce(x)
    else:
        begun = time.monotonic()
        work = comm.allreduce_async(x)
        with raises(OpTimeout, "rank 1", "not begun", "allreduce(sum, float64, 4 elements)"):
            work.wait()
        assert 1.0 < time.monotonic() - begun < 4.0
        cupy.cuda.get_current_stream().synchronize()
        for again in (lambda: comm.allreduce(x), comm.synchronize, lambda: comm.allreduce(np.ones(2))):
            with raises(OpTimeout, "rank 1"):
                again()
        failed = [o for o in comm.dump()["operations"] if o["state"] == "failed"]
        assert [o["engine"] for o in failed] == ["nccl"]
    comm.close()


@case
def never_first() -> None:
    """A rank that never makes the first call, in which connections are made, is named, too."""
    comm = start(timeout=1.5)
    if RANK == 1:
        time.sleep(4)
    else:
        with raises(OpTimeout, "rank 1"):
            comm.allreduce(cupy.asarray(np.ones(4)))
    comm.close()


@case
def different() -> None:
    """Ranks that make different calls learn it, although NCCL compares nothing: here one waits for the other."""
    comm = start(timeout=30.0)
    comm.allreduce(cupy.asarray(np.ones(4)))
    begun = time.monotonic()
    with raises(DesyncError, "4 elements", "40000 elements"):
        comm.allreduce(cupy.asarray(np.ones(40000 if RANK else 4)))
        comm.synchronize()
        comm.barrier()
    assert time.monotonic() - begun < 5.0
    comm.close()


@case
def different_unseen() -> None:
    """The same where both complete: the next call on the host shows it."""
    comm = start(timeout=30.0)
    comm.allreduce(cupy.asarray(np.ones(4)))
    with raises(DesyncError):
        comm.allreduce(cupy.asarray(np.ones(4)), "max" if RANK else "sum")
        comm.synchronize()
        comm.barrier()
    comm.close()


@case
def different_memory() -> None:
    comm = start(timeout=30.0)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x)
    begun = time.monotonic()
    with raises(DesyncError):
        comm.allreduce(x if RANK == 0 else np.ones(4))
        comm.synchronize()
    assert time.monotonic() - begun < 5.0
    comm.close()


def _survive(comm: collectives.Communicator, begin: Callable[[], Any]) -> None:
    """Raise PeerLost within the bar, use the device, and go on alone."""
    begun = time.monotonic()
    with raises(PeerLost, "rank 1"):
        begin()
        comm.synchronize()
    print(f"raised after {time.monotonic() - begun:.2f} s")
    assert time.monotonic() - begun < SOON + 1.0  # of which the other rank needs up to a second to die
    cupy.cuda.get_current_stream().synchronize()
    comm.close()
    with collectives.init("memory://alone", rank=0, size=1, transport="nccl") as new:
        np.testing.assert_array_equal(new.allreduce(cupy.asarray(np.arange(3.0))).get(), [0, 1, 2])


def _die(*_: Any) -> Any:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


@case
def killed_in_operation() -> None:
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x)
    comm.barrier()
    if RANK == 1:
        if ON_STAND_IN:
            gate = Gate()
            gate.hold(cupy.cuda.get_current_stream())
            comm.allreduce_async(x)  # its stream never comes to it
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    _survive(comm, lambda: [comm.allreduce_async(x) for _ in range(50)])


@case
def killed_before_first_call() -> None:
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.barrier()
    if RANK == 1:
        # As far as NCCL's communicator is made, and not further.
        StreamCalls.issue = _die  # type: ignore[method-assign, assignment]
        comm.allreduce(x)
    _survive(comm, lambda: comm.allreduce(x))


@case
def killed_while_forming() -> None:
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.barrier()
    if RANK == 1:
        core_nccl._unique_id = _die  # type: ignore[assignment]
        comm.allreduce(x)
    _survive(comm, lambda: comm.allreduce(x))


@case
def closed() -> None:
    """`close` aborts what is not complete, and does not wait for the other ranks."""
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x)
    comm.synchronize()
    comm.barrier()
    if RANK == 0:
        work = comm.allreduce_async(x)
        begun = time.monotonic()
        comm.close()
        assert time.monotonic() - begun < 5.0
        with raises(Aborted, "closed"):
            work.wait()
        cupy.cuda.get_current_stream().synchronize()
    else:
        time.sleep(1.5)  # rank 0 closes meanwhile
        with raises(PeerLost, "rank 0"):
            while True:
                comm.allreduce(x)
                comm.synchronize()
    comm.close()


if __name__ == "__main__":
    CASES[sys.argv[1]]()
