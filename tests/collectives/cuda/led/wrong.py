"""Arguments that are refused."""

from __future__ import annotations

import numpy as np

from collectives import TransportUnavailable
from tests.collectives.cuda.by_name import refused
from tests.collectives.cuda.led.common import array, case, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Device, Stream, cupy


@case
def bad_input() -> None:
    """Each is refused with a clear error on the rank that made it, and the communicator goes on."""
    with start(transport="leader") as comm:
        good = array(np.ones(4, np.float32))
        comm.allreduce(good)
        freed = array(np.ones(4, np.float32))
        freed.free()
        with refused(ValueError, "x (address 0x", "not memory of a CUDA device", "give an array on device 0"):
            comm.allreduce(freed, out=good)
        with Device(1):
            other, foreign = array(np.ones(4, np.float32)), Stream()
        with refused(ValueError, "device 1"):
            comm.allreduce(other)
        with refused(ValueError, "x is on device 0 and out on device 1: give both on one device"):
            comm.allreduce(good, out=other)
        with refused(ValueError, "not one of device"):
            comm.allreduce(good, stream=foreign)
        with refused(ValueError, "host memory"):
            comm.allreduce(good, out=np.ones(4, np.float32))
        with refused(TypeError, "host memory", 'transport="auto"'):
            comm.allreduce(np.ones(4, np.float32))
        with refused(ValueError, "device 0", "out is read-only", "give"):
            comm.allreduce(good, out=cupy.ndarray((4,), np.float32, writable=False))
        with refused(ValueError, "shape"):
            comm.allreduce(good, out=cupy.empty((5,)))
        with refused(ValueError, "divides the first axis"):
            comm.reduce_scatter(cupy.empty((SIZE + 1,)))
        both, pair = cupy.empty((4,), np.float32), [good, cupy.empty((4,), np.float32)]
        with refused(ValueError, "array 0 is on device 0 and array 1 on device 1"):
            comm.allreduce_many([good, other])
        with refused(ValueError, "array 1 of the list is in host memory"):
            comm.allreduce_many([good, np.ones(4, np.float32)])
        with refused(ValueError, "out has 1 arrays, but there are 2"):
            comm.allreduce_many(pair, out=[both])
        with refused(ValueError, "arrays 0 and 1 of the list share memory"):
            comm.allreduce_many(pair, out=[both, both])
        with refused(ValueError, "array 1 of the list: out has shape (5,)"):
            comm.allreduce_many(pair, out=[both, cupy.empty((5,), np.float32)])
        with refused(TypeError, "no meaning"):
            comm.allreduce_many(pair, "band")
        with refused(TransportUnavailable, "it does not run scan"):
            comm.scan(good)
        with refused(TransportUnavailable, "it does not run scatter"):
            comm.scatter(None if RANK else good)
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(4, SIZE * 1.0))


@case
def wrong_on_one_device() -> None:
    """What does not need a second device, or an address that CuPy would not give."""
    with start(transport="leader") as comm:
        good = array(np.ones(4, np.float32))
        comm.allreduce(good)
        with refused(ValueError, "host memory"):
            comm.allreduce(good, out=np.ones(4, np.float32))
        with refused(ValueError, "shape"):
            comm.allreduce(good, out=cupy.empty((5,), np.float32))
        with refused(TypeError, "host memory", 'transport="auto"'):
            comm.allreduce(np.ones(4, np.float32))
        with refused(TransportUnavailable, "it does not run scan"):
            comm.scan(good)
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(4, SIZE * 1.0))
