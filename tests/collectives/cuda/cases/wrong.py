"""Bad input: each is refused with a clear error before NCCL sees it."""

from __future__ import annotations

import numpy as np

from collectives import Aborted, CollectiveError, TransportUnavailable
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Device, Stream, cupy


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
        for wrong in (
            lambda: comm.allreduce_many([good, np.ones(2)]),
            lambda: comm.send(np.ones(2), 1, stream=Stream()),
        ):
            with raises(ValueError, "CUDA device"):
                wrong()
        with raises(ValueError, "array 1 of the list", "dtype"):
            comm.allreduce_many([good, good], out=[cupy.empty((4,)), cupy.empty((4,), np.int32)])
        with raises(ValueError, "share memory"):
            both = cupy.empty((4,))
            comm.allreduce_many([good, good], out=[both, both])
        with raises(ValueError, "array 1 on device"):
            comm.allreduce_many([good, other])
        with raises(ValueError, "in different memory"):
            comm.sendrecv(good, 0, np.ones(4, np.float32), 0)
        with raises(ValueError, "give source"):
            comm.recv(good)
        with raises(ValueError, "dest"):
            comm.send(good, SIZE)
        with raises(ValueError, "counts add up"):
            comm.reduce_scatterv(good, [3] * SIZE)
        with raises(TypeError, "avg", "int32"):
            comm.allreduce(cupy.empty((4,), np.int32), "avg")
        with raises(ValueError, "NCCL has no 'allreduced'", "allreduce"):
            comm.prepare("allreduced")
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(4, 2.0))
        assert [o["state"] for o in comm.dump()["operations"] if o["engine"] == "nccl"] == ["done"] * 2


@case
def wrong_on_one_device() -> None:
    """What does not need a second device, or an address that CuPy would not give."""
    with start(transport="nccl") as comm:
        good = cupy.asarray(np.ones(4, np.float32))
        comm.allreduce(good)
        with raises(ValueError, "host memory"):
            comm.allreduce(good, out=np.ones(4, np.float32))
        with raises(ValueError, "shape"):
            comm.allreduce(good, out=cupy.empty((5,), np.float32))
        with raises(ValueError, "dtype"):
            comm.allreduce(good, out=cupy.empty((4,), np.float64))
        with raises(TypeError, "stream is a str"):
            comm.allreduce(good, stream="mine")
        with raises(ValueError, "no handle"):
            comm.allreduce(good, stream=-3)
        with raises(TypeError, "host memory"):
            comm.allreduce(np.ones(4, np.float32))
        with raises(TypeError, "avg", "int32"):
            comm.allreduce(cupy.empty((4,), np.int32), "avg")
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(4, SIZE * 1.0))


@case
def full() -> None:
    """The memory of rank 1's device is full: it says so, and no other rank is left waiting."""
    comm = start()
    if RANK == 1:
        with raises(TransportUnavailable, "on device 1", "the device's memory is full", "free arrays"):
            comm.prepare()
    else:
        with raises(CollectiveError, "rank 1"):
            comm.prepare()
    comm.close()


@case
def captured_first() -> None:
    """A first call in a captured stream is refused on all ranks, and nothing is lost."""
    with start() as comm:
        x, stream = cupy.asarray(np.ones(4)), Stream()
        if RANK == 1:
            stream.begin_capture()
            with raises(ValueError, "captured", "comm.prepare()"):
                comm.allreduce(x, out=x, stream=stream)
            stream.end_capture()  # the capture itself is not lost
        else:
            with raises(Aborted, "rank 1", "captured"):
                comm.allreduce(x, out=x, stream=stream)
        with stream:
            np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, 2.0))
