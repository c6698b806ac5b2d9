"""Memory of arrays: how the leader reaches it, how long it lives, and what happens when the device is full."""

from __future__ import annotations

import gc
import os
import time
import weakref
from typing import Any

import numpy as np

from collectives import Aborted, TransportUnavailable
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.led.common import array, case, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Gate, Stream, cupy, driver


@case
def memory_of_all_kinds() -> None:
    """Arrays that are exported by a handle, by a descriptor, or staged; arrays cut out of a larger allocation."""
    with start(transport="leader") as comm:
        for kinds in (("descriptor", "handle"), ("none", "handle"), ("none", "none"), ("descriptor", "none")):
            driver.kind = kinds[RANK % 2]
            for _ in range(3):
                x = array(np.arange(1000.0) + RANK)
                y = comm.allreduce(x)
                np.testing.assert_array_equal(y.get(), SIZE * np.arange(1000.0) + SIZE * (SIZE - 1) // 2)
                np.testing.assert_array_equal(comm.allgather(x).get()[SIZE - 1], np.arange(1000.0) + SIZE - 1)
        driver.kind = "handle"
        whole = array(np.zeros(3000, np.float32))
        first, second = whole.part(0, 1000), whole.part(1000 + RANK, 1000)
        first.set(np.full(1000, 1.0, np.float32))
        comm.allreduce(first, out=second)
        np.testing.assert_array_equal(second.get(), np.full(1000, float(SIZE), np.float32))
        assert whole.get().sum() == 1000 * (SIZE + 1)


@case
def memory_used_again() -> None:
    """Memory that was freed and allocated again at the same place is not taken for the old one."""
    with start(transport="leader") as comm:
        for i in range(20):
            x = array(np.full(2000, float(i + RANK)))
            np.testing.assert_array_equal(
                comm.allreduce(x).get(), np.full(2000, SIZE * float(i) + SIZE * (SIZE - 1) // 2)
            )
            comm.barrier()
            x.free()


@case
def many_allocations() -> None:
    """The leader keeps 256 allocations of the others mapped, and maps again what it has closed."""
    most, count = 256, 300
    with start(transport="leader") as comm:
        x = array(np.zeros(4))
        comm.allreduce(x, out=x)
        comm.synchronize()
        before = driver.opened() - (RANK == 0)  # without x of the other rank
        given = [array(np.full(4, float(i + RANK))) for i in range(count)]
        for _ in range(2):
            for i, one in enumerate(given):
                comm.allreduce(one, out=x)
                if i % 50 == 0:
                    np.testing.assert_array_equal(x.get(), SIZE * i + SIZE * (SIZE - 1) / 2)
            comm.synchronize()
            until = time.monotonic() + 10.0
            while driver.opened() > before + most and time.monotonic() < until:
                time.sleep(0.01)  # the leader closes them when it has nothing to do
            opened = driver.opened() - before
            assert opened == (most if RANK == 0 else 0), opened
            comm.barrier()


@case
def own_memory() -> None:
    """Arrays of `comm.empty` on the device, alone and as arrays of another library; their memory is used again."""
    with start(transport="leader") as comm:
        stream = Stream()
        addresses = set()
        for i in range(5):
            x = comm.empty(1000, where="cuda")
            whole = comm.empty((SIZE, 500), "int64", where="cuda:0")
            seen = cupy.asarray(x)
            seen.set(np.full(1000, i + RANK, np.float32))
            y = comm.allreduce(x, stream=stream)
            assert type(y) is type(x) and y.shape == (1000,)
            comm.synchronize(stream)
            total = SIZE * i + SIZE * (SIZE - 1) // 2
            np.testing.assert_array_equal(cupy.asarray(y).get(), np.full(1000, total, np.float32))
            cupy.asarray(whole).fill(RANK)
            part = comm.reduce_scatter(whole)
            comm.synchronize()
            np.testing.assert_array_equal(cupy.asarray(part).get(), np.full((1, 500), SIZE * (SIZE - 1) // 2))
            addresses.add(x.__cuda_array_interface__["data"][0])
            del x, y, seen, whole, part
        assert len(addresses) < 5, addresses
        memory = comm.memory()
        assert 0 < memory["leader"] < memory["device_heap"], memory
        for where in ("gpu", "cuda:x", ""):
            with raises(ValueError, "where is"):
                comm.empty(3, where=where)
        with raises(ValueError, "there is no device 77"):
            comm.empty(3, where="cuda:77")


@case
def kept() -> None:
    """What a call uses lives until its stream has passed the call, and not longer."""
    with start() as comm:
        comm.allreduce(array(np.ones(4)))
        stream, gate = Stream(), Gate()
        gate.hold(stream)
        x, y = array(np.ones(1000)), array(np.zeros(1000))
        alive = [weakref.ref(one) for one in (x, y)]
        comm.allreduce(x, out=y, stream=stream)
        first = comm.empty(1000, where="cuda")
        address = first.__cuda_array_interface__["data"][0]
        comm.allreduce(first, stream=stream)
        del x, y, first
        gc.collect()
        assert all(one() is not None for one in alive)
        others = [comm.empty(1000, where="cuda") for _ in range(3)]
        assert address not in [one.__cuda_array_interface__["data"][0] for one in others]
        gate.open()
        comm.synchronize(stream)
        gc.collect()
        assert all(one() is None for one in alive)
        # In the stream of the arrays' library, which orders their memory, nothing is kept.
        x = array(np.ones(1000))
        alive = [weakref.ref(x)]
        comm.allreduce(x)
        del x
        gc.collect()
        assert alive[0]() is None


class Unchanging:
    """An array of a library that exports it by DLPack only, as JAX does."""

    def __init__(self, values: Any) -> None:
        self._array = array(values)
        self.dtype = self._array.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._array.device.id)

    def __dlpack__(self, **_: Any) -> Any:
        cupy.cuda.get_current_stream().synchronize()
        return self._array._host.__dlpack__()


Unchanging.__module__ = "jaxlib"


@case
def copied() -> None:
    """Calls that no engine of devices runs copy every kind of device array, also those without copies of their own."""
    with start(deterministic=True) as comm:
        x = Unchanging(np.arange(5.0) + RANK)
        y = comm.empty(5, "float64", where="cuda")
        assert comm.allreduce(x, out=y) is y
        total = SIZE * np.arange(5.0) + SIZE * (SIZE - 1) / 2
        np.testing.assert_array_equal(cupy.asarray(y).get(), total)
        z = comm.scan(y)
        assert type(z) is type(y)
        np.testing.assert_array_equal(cupy.asarray(z).get(), total * (RANK + 1))
        np.testing.assert_array_equal(cupy.asarray(comm.allgather(y)).get(), np.stack([total] * SIZE))
        if RANK == 0:
            comm.send(y, SIZE - 1)
        elif RANK == SIZE - 1:
            comm.recv(z, 0)
            np.testing.assert_array_equal(cupy.asarray(z).get(), total)
        comm.broadcast(y, root=0)
        with raises(TypeError, "give out="):
            comm.scan(x)
        with raises(TypeError, "JAX", "must not be written"):
            comm.scan(y, out=x)
        with raises(ValueError, "not memory of a CUDA device"):
            gone = Unchanging(np.ones(3))
            gone._array.free()
            comm.scan(gone, out=comm.empty(3, "float64", where="cuda"))


@case
def no_room_for_a_result() -> None:
    """The device's memory is full when a new array is made for a result: the error names rank, device and cure."""
    with start(timeout=30.0) as comm:
        x = array(np.ones(1 << 18, np.float64))  # 2 MiB
        own = comm.empty(1 << 18, "float64", where="cuda")
        out = array(np.zeros(1 << 18, np.float64))
        comm.allreduce(x, out=out)
        twins = [comm.dup(), comm.dup()]  # a call without room for its result ends its communicator
        os.environ["STAND_IN_MOST_MIB"] = "1"
        for call in (
            lambda: twins[0].allreduce(x),
            lambda: twins[1].allreduce(own),
            lambda: comm.empty(1 << 20, where="cuda"),
        ):
            with raises(TransportUnavailable, f"rank {RANK}: ", "device 0", "free arrays"):
                call()
        comm.allreduce(x, out=out)
        np.testing.assert_array_equal(out.get()[::1000], SIZE)
        for twin in twins:
            twin.close()


@case
def out_of_memory() -> None:
    """The device's memory is full when a call has to stage its array: all ranks learn it."""
    comm = start(timeout=30.0)
    comm.allreduce(array(np.ones(4)))
    driver.kind = "none" if RANK == 1 else "handle"
    x = array(np.ones(1 << 18, np.float64))  # 2 MiB, and more than that in the heap
    os.environ["STAND_IN_MOST_MIB"] = "1"
    begun = time.monotonic()
    with raises((TransportUnavailable, Aborted), "rank 1" if RANK != 1 else "memory is full"):
        comm.allreduce(x, out=x)
        comm.synchronize()
        comm.barrier()
    assert time.monotonic() - begun < 5.0
    comm.close()
