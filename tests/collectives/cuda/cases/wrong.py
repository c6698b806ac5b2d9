"""Bad input: each is refused with a clear error before NCCL sees it."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import numpy as np

import collectives
from collectives import Aborted, AuthError, CollectiveError, PeerLost, TransportUnavailable
from collectives.core import agreed
from collectives.rendezvous import secret
from tests.collectives.cuda.by_name import raises, refused
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
        with refused(ValueError, "x (address 0x", "not memory of a CUDA device", f"give an array on device {RANK}"):
            comm.allreduce(freed, out=good)  # a new array for the result could get the address
        host = cupy.asarray(np.ones(4, np.float32))
        elsewhere = np.ones(4, np.float32)
        host._address = elsewhere.ctypes.data
        with refused(ValueError, "not memory of a CUDA device"):
            comm.allreduce(host, out=good)
        with Device((RANK + 1) % 8):
            other = cupy.asarray(np.ones(4, np.float32))
            foreign = Stream()
        with refused(ValueError, f"device {(RANK + 1) % 8}"):
            comm.allreduce(other)
        with refused(ValueError, "x is on device", "out on device", "give both on one device"):
            comm.allreduce(good, out=other)
        with refused(ValueError, "not one of device"):
            comm.allreduce(good, stream=foreign)
        with refused(ValueError, "host memory"):
            comm.allreduce(good, out=np.ones(4, np.float32))
        with refused(ValueError, "x is in host memory"):
            comm.allreduce(np.ones(4, np.float32), out=good)
        with refused(ValueError, f"device {RANK}", "not contiguous", "give"):
            comm.allreduce(cupy.ndarray((2, 2), np.float32, strides=(4, 8)))
        with refused(ValueError, f"device {RANK}", "out is read-only", "give"):
            comm.allreduce(good, out=cupy.ndarray((4,), np.float32, writable=False))
        with refused(ValueError, "shape"):
            comm.allreduce(good, out=cupy.empty((5,)))
        with refused(ValueError, "dtype"):
            comm.allreduce(good, out=cupy.empty((4,), np.float64))
        with refused(ValueError, "divides the first axis"):
            comm.reduce_scatter(cupy.empty((SIZE + 1,)))
        with refused(TypeError, "stream is a str"):
            comm.allreduce(good, stream="mine")
        with refused(ValueError, "no handle"):
            comm.allreduce(good, stream=-3)
        with refused(ValueError, "not on a CUDA device"):
            comm.allreduce(np.ones(3), stream=Stream())
        gone = Stream()
        gone.destroy()
        with refused(TransportUnavailable, "does not exist any more"):
            comm.allreduce(good, stream=gone)
        for wrong in (
            lambda: comm.allreduce_many([good, np.ones(2)]),
            lambda: comm.send(np.ones(2), 1, stream=Stream()),
        ):
            with refused(ValueError, "CUDA device"):
                wrong()
        with refused(ValueError, "array 1 of the list", "dtype"):
            comm.allreduce_many([good, good], out=[cupy.empty((4,)), cupy.empty((4,), np.int32)])
        with refused(ValueError, "share memory"):
            both = cupy.empty((4,))
            comm.allreduce_many([good, good], out=[both, both])
        with refused(ValueError, "array 1 on device"):
            comm.allreduce_many([good, other])
        with refused(ValueError, "in different memory"):
            comm.sendrecv(good, 0, np.ones(4, np.float32), 0)
        with refused(ValueError, "give source"):
            comm.recv(good)
        with refused(ValueError, "dest"):
            comm.send(good, SIZE)
        with refused(ValueError, "counts add up"):
            comm.reduce_scatterv(good, [3] * SIZE)
        with refused(TypeError, "avg", "bool"):
            comm.allreduce(cupy.empty((4,), np.bool_), "avg")
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
        with refused(ValueError, "host memory"):
            comm.allreduce(good, out=np.ones(4, np.float32))
        with refused(ValueError, "shape"):
            comm.allreduce(good, out=cupy.empty((5,), np.float32))
        with refused(ValueError, "dtype"):
            comm.allreduce(good, out=cupy.empty((4,), np.float64))
        with refused(TypeError, "stream is a str"):
            comm.allreduce(good, stream="mine")
        with refused(ValueError, "no handle"):
            comm.allreduce(good, stream=-3)
        with refused(TypeError, "host memory"):
            comm.allreduce(np.ones(4, np.float32))
        with refused(TypeError, "avg", "bool"):
            comm.allreduce(cupy.empty((4,), np.bool_), "avg")
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(4, SIZE * 1.0))


@case
def full() -> None:
    """The memory of rank 1's device is full: it says so, and no other rank is left waiting."""
    comm = start()
    if RANK == 1:
        with raises((TransportUnavailable, Aborted), "on device 1", "the device's memory is full", "free arrays"):
            comm.prepare()
    else:
        with raises(CollectiveError, "rank 1"):
            comm.prepare()
    comm.close()


@case
def full_for_a_result() -> None:
    """Only rank 1's device has no memory for a new result: no other rank is left waiting for it in the call."""
    for call in ("allreduce", "allreduce_many", "allgatherv"):
        comm = start(name=call, timeout=30.0)
        x = cupy.asarray(np.ones(1 << 17))  # 1 MiB
        comm.allreduce(x, out=x)
        comm.synchronize()
        if RANK == 1:
            os.environ["STAND_IN_MOST_MIB"] = "0"
            with raises(TransportUnavailable, "device", "no memory left for a result", "give out="):
                comm.scan(x)  # by way of host memory: the others have their results
        else:
            np.testing.assert_array_equal(comm.scan(x).get()[::1000], SIZE * 1.0)
        begun = time.monotonic()
        with raises(TransportUnavailable if RANK == 1 else PeerLost, "rank 1: device", "no memory left for a result"):
            getattr(comm, call)([x] if call.endswith("many") else x)
            comm.synchronize()
            comm.barrier()
        assert time.monotonic() - begun < 5.0
        os.environ.pop("STAND_IN_MOST_MIB", None)
        comm.close()


@case
def forged() -> None:
    """The record FORGED of rank 0 was changed after it was sealed: no rank believes it."""

    def sealed_before(key: bytes, run: str, epoch: int, name: str, value: bytes) -> bytes:
        if name == f"{os.environ['FORGED']}0":
            value = value.replace(b"0", b"1", 1)
        return secret.sign(key, run, epoch, name, value)

    if RANK == 0:
        seals = SimpleNamespace(sign=sealed_before, verify=secret.verify, TAG_SIZE=secret.TAG_SIZE)
        setattr(agreed, "secrets", seals)  # noqa: B010
    with start() as comm:
        begun = time.monotonic()
        with raises(AuthError, "rank 0 sent", "was not written by a rank of the job"):
            comm.allreduce(cupy.asarray(np.ones(4)))
        assert time.monotonic() - begun < 5.0


@case
def prepared_without_a_device() -> None:
    """Rank 1 has chosen no device, or one that is not there: the others learn of it, and the group stays usable."""
    with start() if RANK != 1 else collectives.init(timeout=20.0) as comm:
        for device, why in ((None, "uses no CUDA device"), (77, "there is no device 77")):
            begun = time.monotonic()
            with raises(ValueError if RANK == 1 else Aborted, "rank 1", why):
                comm.prepare(device=device if RANK == 1 else None)
            assert time.monotonic() - begun < 5.0
        comm.prepare(device=int(os.environ.get("WORKER_DEVICE", RANK)))
        comm.prepare("broadcast")  # on the device that is in use now
        if comm.memory()["nccl"]:  # by which scatter runs then, on this device
            rows = np.arange(SIZE * 2.0).reshape(SIZE, 2)
            row = comm.scatter(cupy.asarray(rows) if RANK == 0 else None)
            np.testing.assert_array_equal(row.get(), rows[RANK])
        with Device(int(os.environ.get("WORKER_DEVICE", RANK))):
            x = cupy.asarray(np.ones(4))
            np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, SIZE * 1.0))


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
