"""The order of streams."""

from __future__ import annotations

import os
import time

import numpy as np

from collectives import OpTimeout
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.led.common import array, case, start
from tests.collectives.cuda.runs_on import ON_STAND_IN, RANK, SIZE, Gate, Stream, cupy


@case
def order() -> None:
    """The call waits for nothing on the host; a held stream holds what is in it; many calls at once."""
    with start(transport="leader") as comm:
        held, gate = Stream(), Gate()
        x, late = array(np.ones(4, np.float32)), array(np.zeros(4, np.float32))
        comm.allreduce(x)
        comm.synchronize()
        if RANK == SIZE - 1:
            gate.hold(held)
        work = comm.allreduce_async(x, out=late, stream=held)
        time.sleep(0.2)
        if work.done():  # then closing would wait for the held stream
            print("AssertionError: the call was complete before all ranks had come to it", flush=True)
            os._exit(1)
        with raises(OpTimeout, "still running"):
            work.wait(0.05)
        with raises(OpTimeout, "synchronize waited", "1 of the operations"):
            comm.synchronize(timeout=0.05)
        comm.barrier()
        gate.open()
        work.wait()
        np.testing.assert_array_equal(late.get(), np.full(4, SIZE * 1.0))
        works = [comm.allreduce_async(array(np.full(4, i, np.float32))) for i in range(300)]
        for i, one in enumerate(works):
            np.testing.assert_array_equal(one.wait().get(), np.full(4, SIZE * 1.0 * i))
        # The last rank is late again and again: an earlier result would be read if a wait were missing.
        for i in range(30):
            if RANK == SIZE - 1:
                time.sleep(0.002)
            x.set(np.full(4, i + RANK, np.float32))
            comm.allreduce(x, out=late)
            np.testing.assert_array_equal(late.get(), np.full(4, SIZE * i + SIZE * (SIZE - 1) // 2))


@case
def delayed() -> None:
    """The last rank is late, on the host and, on a device, in its stream, too."""
    with start(transport="leader") as comm:
        x, late = array(np.zeros(4, np.float32)), array(np.zeros(4, np.float32))
        busy = cupy.empty((64 << 20,), np.float32)
        comm.allreduce(x, out=late)
        for i in range(30):
            if RANK == SIZE - 1:
                time.sleep(0.002)
                for _ in range(0 if ON_STAND_IN else 50):  # some milliseconds
                    busy.fill(i)
            x.fill(i + RANK)
            comm.allreduce(x, out=late)
            np.testing.assert_array_equal(late.get(), np.full(4, SIZE * i + SIZE * (SIZE - 1) // 2))


@case
def waited_for() -> None:
    """`synchronize` of a stream waits for replays in it, and for all else, but not in a capture."""
    with start() as comm:
        comm.prepare("allreduce", dtype="int32", op="max")
        stream, gate = Stream(), Gate()
        gate.hold(stream)
        with raises(OpTimeout):
            comm.synchronize(stream, timeout=0.05)
        gate.open()
        comm.synchronize(stream, timeout=10)
        stream.begin_capture()
        with raises(ValueError, f"rank {RANK}: ", "captured"):
            comm.synchronize(stream)
        stream.end_capture()
