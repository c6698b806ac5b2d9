"""The floors of CUDA devices: lower limits of a collective's time there, measured in the same run as the collective.

Invariant: floors call the CUDA driver and no library. They are timed on all ranks at once, in turns with this library
and other systems. N is the collective's size in bytes.

    copy     every rank copies N bytes within its device's memory
    launch   every rank launches a kernel that does nothing, and waits for it
    hop      the stream of rank 0 writes a flag into memory of the host for which the stream of rank 1 waits, one way
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from collectives import Communicator
from collectives.bench.cases import Case
from collectives.bench.device import Device, address
from collectives.bench.driver import Driver
from collectives.bench.limits import Begin, Floor
from collectives.bench.loop import Pace, Samples
from collectives.bench.measure import Contestant, Unsupported
from collectives.bench.shared import shared

OF_DEVICES: Final = ("copy", "launch", "hop")
_HOPS: Final = 32  # there and back, in a row: what it takes to begin and to wait for the end then hardly counts
_FLAGS: Final = (0, 32)  # the words that ranks 0 and 1 write, on different cache lines
_BYTES: Final = 4096
_FREE: Final = 0x7FFFFFFF  # a value that lets every wait pass


def floors(comm: Communicator, names: Sequence[str], device: Device, stack: ExitStack) -> list[Contestant]:
    """Return objects that measure lower bounds for a collective's time on CUDA devices. All ranks must call this.

    `names` selects the bounds; the module docstring lists them. `comm` is the benchmark's communicator, `device` this
    rank's device. `stack` frees the resources at the end.
    """
    driver = Driver()
    begin: dict[str, Begin] = {
        "copy": lambda case: _copy(driver, device, case),
        "launch": lambda _case: _launch(driver, device),
    }
    return [Hop(comm, driver, device, stack) if name == "hop" else Floor(name, comm, begin[name]) for name in names]


def _copy(driver: Driver, device: Device, case: Case) -> Callable[[], None]:
    source, target = (device.empty((case.nbytes,), np.uint8) for _ in range(2))
    for array in (source, target):
        array.fill(1)
    addresses, nbytes, stream = (address(target), address(source)), case.nbytes, device.stream.ptr

    def copy(_kept: Any = (source, target)) -> None:
        driver.copy(*addresses, nbytes, stream)
        device.settle()

    return copy


def _launch(driver: Driver, device: Device) -> Callable[[], None]:
    kernel, stream = driver.empty_kernel(), device.stream.ptr

    def launch() -> None:
        kernel(stream)
        device.settle()

    return launch


class Hop:
    """A lower bound for a collective's time: the latency of a flag from the stream of rank 0 to that of rank 1.

    One stream writes the flag into host memory, the other stream waits for it. The size does not matter.
    """

    name: Final = "hop"
    is_ours: Final = False

    def __init__(self, comm: Communicator, driver: Driver, device: Device, stack: ExitStack) -> None:
        self._comm: Final = comm
        self._driver: Final = driver
        self._stream: Final = device.stream
        self._count = 0
        self._at = 0
        memory = shared(comm, _BYTES) if comm.size > 1 else None
        if memory is None:
            return
        self._words = np.frombuffer(memory, np.uint32)
        if comm.rank < 2:
            self._at = stack.enter_context(driver.registered(self._words.ctypes.data, _BYTES))
            stack.callback(self._free)  # before the memory is no longer registered

    def prepare(self, case: Case) -> None:
        if not int(self._comm.allreduce(np.array(bool(self._at), np.int64), "max")):
            raise Unsupported("there are no two ranks, or not all ranks map the same memory")

    def wrong(self, case: Case, salt: int) -> int:
        return 0

    def iterations(self, pace: Pace) -> int:
        return min(20, pace.most)

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        times = []
        for _ in range(iterations):
            self._comm.barrier()
            if self._comm.rank < 2:
                times.append(self._there_and_back() / (2 * _HOPS))
        self._comm.barrier()
        return (np.array(times),) if self._comm.rank == 0 else ()

    def finish(self) -> None:
        """Does nothing: the flags are kept."""

    def _there_and_back(self) -> float:
        driver, stream = self._driver, self._stream.ptr
        mine, other = (self._at + 4 * word for word in (_FLAGS if self._comm.rank == 0 else reversed(_FLAGS)))
        start = time.perf_counter()
        for count in range(self._count + 1, self._count + _HOPS + 1):
            if self._comm.rank == 0:
                driver.write(stream, mine, count)
                driver.wait(stream, other, count)
            else:
                driver.wait(stream, other, count)
                driver.write(stream, mine, count)
        self._count += _HOPS
        self._stream.synchronize()
        return time.perf_counter() - start

    def _free(self) -> None:
        """Let the stream go on if the other rank has failed."""
        self._words[list(_FLAGS)] = _FREE
        self._stream.synchronize()
