"""Collectives of large arrays on CUDA devices through pinned host memory, in slices.

Invariant: a slice is copied to the host, runs there as a collective, and is copied back; these three overlap for
different slices. All ranks divide a call into the same slices, since this is done only in groups whose ranks all have
their arrays on devices. A blocking call uses host memory for at most `_SLOTS` slices, however large its arrays are. If
a call fails after its first slice has begun, the communicator is broken, so no slice meets one of another call.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.arrays import cuda
from collectives.arrays.array import check_counts, check_rank
from collectives.arrays.cuda import CudaArray
from collectives.calls import slices
from collectives.calls.device_checks import check_memory
from collectives.calls.external import ARGUMENTS
from collectives.calls.moves import Calls, Deadline
from collectives.calls.op import identity_of
from collectives.calls.part_way import PartWay
from collectives.calls.passing import SMALLEST
from collectives.calls.pinned_memory import Block, Memory, pinned
from collectives.calls.prepare import Shape
from collectives.calls.slices import ELEMENTWISE, Parts, Sliced
from collectives.calls.targets import ROWS, output, target
from collectives.calls.work import Ticket, Tickets, Waiter, Work
from collectives.native import _engine
from collectives.native.errors import OpTimeout

_SLOTS: Final = 16
_MOST_FREE: Final = 4  # pieces of pinned memory that are kept for further calls: to pin 64 MiB takes milliseconds

# The collectives that run in slices. In scatter and scatterv only the root has an array, and in alltoallv no rank knows
# the sizes of all.
_UNEVEN: Final = {"allgatherv": "allgather", "gatherv": "gather", "reduce_scatterv": "reduce_scatter"}
STAGED: Final = frozenset((*ARGUMENTS, *_UNEVEN))


class StagedCalls:
    """Prepares one communicator's calls that copy device arrays through host memory in slices; has this memory."""

    def __init__(self, calls: Calls, memory: Memory) -> None:
        self._calls: Final = calls
        self._memory: Final = memory
        self._free: Final[list[Block]] = []
        self._most_free = _MOST_FREE

    def prepare(self, name: str, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...]) -> StagedCall | None:
        """Returns a call in slices, ready to be run; None if the arrays are too small for slices.

        `name`: one of STAGED. `args`: its arguments after x, out and timeout. Raises TypeError or ValueError for
        invalid arguments. Calls with parts of different lengths exchange the lengths.
        """
        calls = self._calls
        if calls.size == 1:
            return None
        if name in _UNEVEN:
            return self._uneven(name, x, out, timeout, args)
        op, root = (args[place] if place >= 0 else None for place in ARGUMENTS[name])
        if op is not None and not isinstance(op, str):
            return None
        if op == "avg" and name in ("scan", "exscan"):
            return None  # which is refused like in host memory
        at = -1 if root is None else check_rank(root, calls.size, "root")
        writes_x = name == "broadcast" and at != calls.rank
        array = cuda.writing(x, "x", moved=True) if writes_x else cuda.reading(x, moved=op is None)
        gathers = name in ("allgather", "gather")
        if array.nbytes * (calls.size if gathers else 1) < SMALLEST:
            return None
        deadline = calls.limit(timeout)
        cuda.refuse_capture(array)
        made = target(name, array, out, at, array.stream, calls.rank, calls.size)
        if name == "broadcast":
            given, made = (array, None) if at == calls.rank else (None, array)
        else:
            given = array
        whole = array.size // calls.size if name in ROWS else array.size
        shares = (array.size,) if name in ELEMENTWISE else (whole,) * calls.size
        call = self._call(name, array, given, made, shares, op or "", at, args[-1], deadline, uneven=False)
        return call._replace(result=array.origin) if name == "broadcast" else call

    def checked(
        self,
        name: str,
        like: CudaArray,
        x: CudaArray | None,
        out: CudaArray | None,
        shares: tuple[int, ...],
        deadline: Deadline,
        *,
        op: str = "",
        root: int = -1,
        places: Sequence[int] = (),
        divisor: int = 0,
    ) -> StagedCall:
        """Returns a collective of checked arrays, of any size; also a scatter.

        `like`: as in `StagedCall`. `shares`, `divisor`: as in `Sliced`. `places`: the addresses of the parts of the
        array that has a part for each rank, if they do not lie one after another.
        """
        uneven = len({*shares}) > 1
        return self._call(
            name, like, x, out, shares, op, root, "auto", deadline, uneven=uneven, places=places, divisor=divisor
        )

    def _uneven(self, name: str, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...]) -> StagedCall | None:
        calls, collective, algorithm = self._calls, _UNEVEN[name], args[-1]
        deadline = calls.limit(timeout)
        reduces = collective == "reduce_scatter"
        op, at = (args[1] if reduces else ""), -1
        if not isinstance(op, str):
            return None
        array = cuda.reading(x, moved=not reduces)
        if not array.shape:
            raise ValueError(f"{name} divides the first axis of x, but x has shape ()")
        cuda.refuse_capture(array)
        if reduces:
            rows = check_counts(args[0], calls.size, array.shape[0]).tolist()
            if array.nbytes < SMALLEST:
                return None
            made: CudaArray | None = output(name, array, out, (rows[calls.rank], *array.shape[1:]), array.stream)
        else:
            at = check_rank(args[0], calls.size, "root") if collective == "gather" else -1
            calls.prepare.admit(Shape(collective, array.dtype, 0, (), 0, root=max(at, 0)), algorithm)
            rows = calls.rows_of_all(array, collective, deadline)
            receives = at in (-1, calls.rank)
            made = cuda.fresh(array, (sum(rows), *array.shape[1:]), array.stream) if receives else None
        row = int(np.prod(array.shape[1:], dtype=np.int64))
        shares = tuple(count * row for count in rows)
        return self._call(collective, array, array, made, shares, op, at, algorithm, deadline, uneven=True)

    def _call(
        self,
        name: str,
        like: CudaArray,
        given: CudaArray | None,
        made: CudaArray | None,
        shares: tuple[int, ...],
        op: str,
        root: int,
        algorithm: str,
        deadline: Deadline,
        *,
        uneven: bool,
        places: Sequence[int] = (),
        divisor: int = 0,
    ) -> StagedCall:
        for array, what in ((given, "x"), (made, "out" if name != "broadcast" else "x")):
            if array is not None:
                check_memory(array, what)
        inp = slices.parts(given, shares if name in (*ROWS, "scatter") else ())
        out = slices.parts(made, shares if name in ("allgather", "gather", "alltoall") else ())
        if places and name == "scatter":
            inp = inp._replace(addresses=tuple(places))
        elif places:
            out = out._replace(addresses=tuple(places))
        count = slices.count_of(sum(shares) * like.dtype.itemsize)
        one = Sliced(
            name, like.dtype, op or "sum", max(root, 0), inp, out, shares, self._calls.rank, uneven,
            name in ("allreduce", "broadcast"), count, divisor,
        )  # fmt: skip
        if not self._calls.prepare.collective(one.shape(0), algorithm).in_place:
            one = one._replace(in_place=name == "broadcast")
        result = None if made is None else made.origin
        return StagedCall(self, one, algorithm, like, given, made, result, deadline)

    def operation(self, one: Sliced, index: int, algorithm: str) -> _engine.Operation:
        return self._calls.prepare.collective(one.shape(index), algorithm).operation

    def staging(self, nbytes: int, device: int, deadline: Deadline) -> Block:
        """Returns memory of at least `nbytes` bytes, for the caller alone; waits until no copy uses it."""
        while True:
            fitting = [i for i, one in enumerate(self._free) if one.memory.size >= nbytes and one.device == device]
            if not fitting:
                self._free.clear()  # before more memory is allocated
                return pinned(self._memory, nbytes, device, self._calls.rank)
            ready = next((i for i in fitting if self._free[i].native.is_free), None)
            if ready is not None:
                return self._free.pop(ready)
            if not deadline.left:
                raise OpTimeout(f"rank {self._calls.rank}: the copies of the call before are not over")
            time.sleep(0.0001)

    def give_back(self, staging: Block) -> None:
        """Use the memory in further calls, once no copy uses it any more. On any thread."""
        if len(self._free) < self._most_free:
            self._free.append(staging)

    def close(self) -> None:
        """Release the memory that no call uses."""
        self._most_free = 0
        self._free.clear()


class StagedCall(NamedTuple):
    """A collective with checked arguments. Implements `Ready`.

    `like`: an array of the call, which has its device. Copies begin after the work in its stream. `x`, `out`: the
    arrays that this rank reads and writes, None if there is none.
    """

    calls: StagedCalls
    sliced: Sliced
    algorithm: str
    like: CudaArray
    x: CudaArray | None
    out: CudaArray | None
    result: Any
    deadline: Deadline

    @property
    def seconds(self) -> float:
        return self.deadline.left

    def run(self, group: _engine.Group, seconds: float) -> Any:
        run = self._begun(group, min(self.sliced.slices, _SLOTS), Deadline(seconds))
        with run.part_way:
            run.all()
        return self._ended(run)

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        """Starts the collective; returns when the copies to the host are complete.

        The copies back to the device begin when the caller waits for the returned `Work`. Host memory has room for all
        slices.
        """
        run = self._begun(group, self.sliced.slices, Deadline(seconds))
        with run.part_way:
            run.start_all()

        def deliver() -> Any:
            run.finish_all()
            return self._ended(run)

        return Work(Tickets(run.tickets), deliver, waiter, owner)

    def _begun(self, group: _engine.Group, slots: int, deadline: Deadline) -> _Run:
        try:
            staging = self.calls.staging(slots * self.sliced.slot_bytes, self.like.device, deadline)
        except cuda.NoRoom as error:
            group.abandon("Aborted", str(error))  # other ranks may have begun the call
            raise
        for stream in self._streams:
            staging.native.begin(stream)
        if self.out is not None:
            cuda.begin_write(self.out)
        return _Run(self, group, staging, slots, deadline)

    def _ended(self, run: _Run) -> Any:
        for stream in self._streams:
            run.staging.native.end(stream)
        self.calls.give_back(run.staging)
        return self.result

    @property
    def _streams(self) -> Sequence[int]:
        """The streams in which the caller uses the arrays."""
        return sorted({array.stream for array in (self.like, self.x, self.out) if array is not None})


class _Run:
    """One run of a call: slices that are copied to the host, and slices that are under way between ranks."""

    def __init__(self, call: StagedCall, group: _engine.Group, staging: Block, slots: int, deadline: Deadline) -> None:
        self._call: Final = call
        self._group: Final = group
        self.staging: Final = staging
        self._slots: Final = slots
        self._deadline: Final = deadline
        self._fetched: Final[deque[_engine.StagedCopy]] = deque()
        self._under_way: Final[deque[Ticket]] = deque()
        self._next_fetched = self._next_finished = 0
        one = call.sliced
        self.part_way: Final = PartWay(group, one.rank, one.name, one.slices, "slices")
        for _ in range(slots):
            self._fetch()

    @property
    def tickets(self) -> list[Ticket]:
        return list(self._under_way)

    def all(self) -> None:
        while self.part_way.begun < self._call.sliced.slices:
            while not self._fetched:  # all slots are in use
                self._finish()
            self._start()
            while self._under_way and self._under_way[0].done():
                self._finish()
        self.finish_all()

    def start_all(self) -> None:
        while self._fetched:
            self._start()

    def finish_all(self) -> None:
        while self._under_way:
            self._finish()

    def _offset(self, index: int) -> int:
        return index % self._slots * self._call.sliced.slot_bytes

    def _fetch(self) -> None:
        index = self._next_fetched
        self._fetched.append(self.staging.native.fetch(self._call.sliced.fetched(index, self._offset(index))))
        self._next_fetched += 1

    def _start(self) -> None:
        one, index = self._call.sliced, self.part_way.begun
        if not self._fetched.popleft().wait(self._deadline.left):
            raise OpTimeout(f"rank {one.rank}: a copy from the device was not complete in time: the stream is held up")
        operation = self._call.calls.operation(one, index, self._call.algorithm)
        writes = one.out.counts or one.name == "broadcast"
        out = self._view(one.out if one.out.counts else one.inp, index, one.output_offset) if writes else None
        reads = one.name != "broadcast" and one.inp.counts
        inp = None if not reads else out if one.in_place else self._view(one.inp, index, 0)
        self._under_way.append(self._group.start(operation, inp, out, self._deadline.left))
        self.part_way.begun += 1

    def _finish(self) -> None:
        """Wait for the oldest slice that is under way, copy it to the device, and use its memory again."""
        self._under_way.popleft().wait(None)
        one, index, native = self._call.sliced, self._next_finished, self.staging.native
        if one.name == "exscan" and one.rank == 0:
            host = self._view(one.out, index, one.output_offset)
            host.fill(identity_of(one.op, host.dtype))
        native.put(one.put(index, self._offset(index)))
        self._next_finished += 1
        if self._next_fetched < one.slices:
            native.reuse()
            self._fetch()

    def _view(self, array: Parts, index: int, begin: int) -> npt.NDArray[Any]:
        """The host memory of a slice of `array`, which begins `begin` bytes after the memory of the slice."""
        one = self._call.sliced
        start = self._offset(index) + begin
        nbytes = slices.elements(array, index, one.slices) * one.dtype.itemsize
        return self.staging.memory[start : start + nbytes].view(one.dtype)
