"""Allreduce of large arrays on a CUDA device through pinned host memory, in slices.

Invariant: a slice is copied to the host, reduced, and copied back; these three overlap for different slices. All ranks
divide an array into the same slices, since this is done only in groups whose ranks all have their arrays on devices.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.arrays import cuda
from collectives.arrays.array import Array, Dtype
from collectives.arrays.cuda import CudaArray
from collectives.calls.call import Call
from collectives.calls.moves import Calls, Deadline
from collectives.calls.targets import target
from collectives.calls.work import Ticket, Tickets, Waiter, Work
from collectives.native import _engine
from collectives.native.errors import OpTimeout

SMALLEST: Final = 4 << 20  # bytes; smaller arrays are copied as a whole
_SLICES: Final = 16
_SMALLEST_SLICE: Final = 1 << 20

Build = Callable[..., Call]  # (x, out, timeout, op, algorithm)


class StagedCalls:
    """Prepares one communicator's calls that copy device arrays through host memory in slices; has this memory."""

    def __init__(self, calls: Calls, memory: Callable[[int, Dtype], Array]) -> None:
        """`memory(count, dtype)` allocates host memory, if possible memory that other ranks can read directly."""
        self._calls: Final = calls
        self._memory: Final = memory
        self._staging: _Staging | None = None

    def prepare(
        self, build: Build, x: Any, out: Any, timeout: float | None, op: str, algorithm: str
    ) -> StagedCall | None:
        """Returns an allreduce in slices, ready to be run; None if the array is too small for slices."""
        array = cuda.reading(x)
        if array.nbytes < SMALLEST:
            return None
        deadline = self._calls.limit(timeout)
        made = target("allreduce", array, out, -1, array.stream, self._calls.rank, self._calls.size)
        assert made is not None
        return StagedCall(self, build, array, made, op, algorithm, deadline)

    def staging(self, nbytes: int, device: int, deadline: Deadline) -> _Staging:
        """Returns memory of at least `nbytes` bytes; waits until no copy uses it."""
        found = self._staging
        if found is None or found.memory.size < nbytes or found.device != device:
            self._staging = found = None  # before more memory is allocated
            host = self._memory(nbytes, np.dtype(np.uint8))
            self._staging = found = _Staging(host, _engine.CudaStaging(host, host.size, device), device)
        while not found.native.is_free:
            if not deadline.left:
                raise OpTimeout(f"rank {self._calls.rank}: the copies of the call before are not over")
            time.sleep(0.0001)
        return found

    def forget(self) -> None:
        """Use new memory in the next call, after a call has failed whose operations may still use the old memory."""
        self._staging = None


class _Staging(NamedTuple):
    memory: npt.NDArray[np.uint8]
    native: _engine.CudaStaging
    device: int


class StagedCall(NamedTuple):
    """An allreduce with checked arguments. Implements `Ready`."""

    calls: StagedCalls
    build: Build
    x: CudaArray
    out: CudaArray
    op: str
    algorithm: str
    deadline: Deadline

    @property
    def result(self) -> Any:
        return self.out.origin

    @property
    def seconds(self) -> float:
        return self.deadline.left

    def run(self, group: _engine.Group, seconds: float) -> Any:
        deadline = Deadline(seconds)
        staging = self.calls.staging(self.x.nbytes, self.x.device, deadline)
        under_way: deque[tuple[int, int, Ticket]] = deque()
        try:
            for begin, end, ticket in self._started(group, staging, deadline):
                under_way.append((begin, end, ticket))
                while under_way and under_way[0][2].done():
                    self._put(staging, *under_way.popleft())
            while under_way:
                self._put(staging, *under_way.popleft())
        except BaseException:
            self.calls.forget()
            raise
        staging.native.end(self.out.stream)
        return self.result

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        """Starts the allreduce; returns when the copies to the host are complete.

        The copies back to the device begin when the caller waits for the returned `Work`.
        """
        deadline = Deadline(seconds)
        staging = self.calls.staging(self.x.nbytes, self.x.device, deadline)
        self.calls.forget()  # other calls may be started before this one is complete
        slices = tuple(self._started(group, staging, deadline))

        def deliver() -> Any:
            for one in slices:
                self._put(staging, *one)
            staging.native.end(self.out.stream)
            return self.result

        return Work(Tickets([ticket for _, _, ticket in slices]), deliver, waiter, owner)

    def _started(
        self, group: _engine.Group, staging: _Staging, deadline: Deadline
    ) -> Iterator[tuple[int, int, Ticket]]:
        """Copies slices to the host and starts to reduce each; yields its bytes (begin, end) and its ticket."""
        x, native = self.x, staging.native
        host = staging.memory[: x.nbytes].view(x.dtype)
        each = max(-(-x.size // _SLICES), _SMALLEST_SLICE // x.dtype.itemsize)
        bounds = [(i, min(i + each, x.size)) for i in range(0, x.size, each)]
        native.begin(x.stream)
        unit = x.dtype.itemsize
        copies = [native.fetch(a * unit, x.address + a * unit, (b - a) * unit) for a, b in bounds]
        cuda.begin_write(self.out)
        for (a, b), copy in zip(bounds, copies, strict=True):
            if not copy.wait(deadline.left):
                raise OpTimeout("a copy from the device was not complete in time: the stream is held up")
            call = self.build(host[a:b], host[a:b], deadline.left, self.op, self.algorithm)
            yield a * unit, b * unit, group.start(call.operation, call.taken, call.out, deadline.left)

    def _put(self, staging: _Staging, begin: int, end: int, ticket: Ticket) -> None:
        ticket.wait(None)
        staging.native.put(begin, self.out.address + begin, end - begin)
