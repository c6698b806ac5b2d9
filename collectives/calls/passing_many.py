"""Allreduce of a list of arrays on CUDA devices, through pinned host memory.

Each part of the list (a bucket of small arrays, or a large array alone) is copied to the host, reduced there, and
copied back. These three overlap for different parts. An array that is larger than a bucket is copied while its
operation runs.

Invariant: how a rank copies its arrays concerns this rank alone. The operations are those of a list in host memory, so
ranks need not agree on anything. A blocking call uses little more host memory than `_MOST_UNDER_WAY`, or than its
largest array needs, however long the list is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from collectives.arrays import cuda
from collectives.arrays.array import Array, Target
from collectives.arrays.cuda import CudaArray, on_cuda
from collectives.calls.call import Call
from collectives.calls.device_checks import check_apart
from collectives.calls.fusion import BUCKET, Fusion, Many, Part
from collectives.calls.moves import Calls, Deadline
from collectives.calls.part_way import PartWay
from collectives.calls.passing import SMALLEST, Passing
from collectives.calls.pinned_memory import Block, PinnedMemory
from collectives.calls.targets import output
from collectives.calls.work import Ticket
from collectives.native import _engine
from collectives.native.errors import OpTimeout

_MOST_UNDER_WAY: Final = 64 << 20  # bytes of host memory, of the parts that are under way in a blocking call
_LARGE: Final = BUCKET  # bytes: an array with more is copied while its operation runs
_ALIGNMENT: Final = 256  # bytes, of input and output in host memory
_NOWHERE: Final = np.empty(0, np.uint8)  # each step has host memory of its own

Pair: TypeAlias = "tuple[CudaArray, CudaArray]"  # an array, and the one for its result
Make: TypeAlias = "Callable[[Array, Array], Call]"  # the allreduce from one array in host memory to the other


class PassingMany:
    """Prepares one communicator's calls of `allreduce_many` whose arrays are on a device."""

    def __init__(self, calls: Calls, fusion: Fusion, memory: PinnedMemory) -> None:
        self._calls: Final = calls
        self._fusion: Final = fusion
        self._memory: Final = memory

    def prepare(
        self, arrays: Sequence[Any], out: Any, timeout: float | None, op: str, bucket_bytes: int, algorithm: str
    ) -> ManyOnDevices | None:
        """Returns an object that runs the call; None if the arrays have to be copied before and after it.

        Raises TypeError or ValueError for an invalid argument, and if a stream of an array is being captured.
        """
        pairs = self._pairs(arrays, out)
        if pairs is None:
            return None
        for array in {array.stream: array for pair in pairs for array in pair}.values():
            cuda.refuse_capture(array)
        check_apart(pairs)
        deadline = self._calls.limit(timeout)
        plan = self._fusion.plan(tuple((x.shape, x.dtype) for x, _ in pairs), op, bucket_bytes, algorithm)
        steps: list[Step] = []
        for part in plan.parts:
            members = [pairs[i] for i in part.members]
            make = partial(self._fusion.allreduce, plan, part, op=op, algorithm=algorithm, deadline=deadline)
            if len(members) == 1 and members[0][0].nbytes > _LARGE:
                steps.append(_Large(self._memory, members[0], make))
            else:
                in_place = self._fusion.is_in_place(part, op, algorithm)
                steps.append(_Bucket(self._memory, part, members, in_place, make, deadline))
        return ManyOnDevices(steps, [_target(y) for _, y in pairs], deadline)

    def _pairs(self, arrays: Sequence[Any], out: Any) -> list[Pair] | None:
        """The arrays and those for their results; None if this module cannot copy them."""
        if self._calls.size == 1 or not arrays or not all(map(on_cuda, arrays)) or _engine.why_no_cuda():
            return None
        wanted: Any = [None] * len(arrays) if out is None else out
        try:
            given = [cuda.reading(x) for x in arrays]
            if sum(x.nbytes for x in given) < SMALLEST or len({x.device for x in given}) > 1:
                return None
            pairs = [(x, output("allreduce", x, y, x.shape, x.stream)) for x, y in zip(given, wanted, strict=True)]
        except (TypeError, ValueError):
            return None  # the arrays' libraries may be able to copy them
        if any(one.nbytes and _engine.cuda_memory(one.address)[0] != "cuda" for pair in pairs for one in pair):
            return None
        return pairs


class ManyOnDevices(NamedTuple):
    """A prepared allreduce of many arrays, as `Many`."""

    steps: list[Step]
    targets: list[Target]
    deadline: Deadline

    def run(self, group: _engine.Group, parts: PartWay) -> list[Any]:
        """`parts` counts the operations that have begun."""
        self._begin()
        waiting, copied = deque(self.steps), deque[Step]()
        under_way: deque[tuple[Step, Ticket]] = deque()
        while waiting or copied or under_way:
            nbytes = sum(step.nbytes for step in (*copied, *(step for step, _ in under_way)))
            while waiting and (not nbytes or nbytes + waiting[0].nbytes <= _MOST_UNDER_WAY):
                copied.append(waiting.popleft())
                copied[-1].fetch()
                nbytes += copied[-1].nbytes
            if copied:
                step = copied.popleft()
                under_way.append((step, self._start(step, group, parts)))
            while under_way and (not copied or under_way[0][1].done()):
                step, ticket = under_way.popleft()
                ticket.wait(None)
                step.call.deliver()
                step.unpack()
                if waiting and not copied:
                    break  # there is memory for the next one
        return self.deliver()

    def start(self, group: _engine.Group, parts: PartWay) -> list[Ticket]:
        """Starts all operations; returns when the copies to the host are complete. `finish` ends the call."""
        self._begin()
        for step in self.steps:
            step.fetch()
        return [self._start(step, group, parts) for step in self.steps]

    def finish(self) -> list[Any]:
        """Copies the results of ended operations to the device."""
        for step in self.steps:
            step.call.deliver()
            step.unpack()
        return self.deliver()

    def deliver(self) -> list[Any]:
        return [target.deliver() for target in self.targets]

    def _begin(self) -> None:
        for target in self.targets:
            target.begin()

    def _start(self, step: Step, group: _engine.Group, parts: PartWay) -> Ticket:
        step.pack()
        call = step.call
        ticket = group.start(call.operation, call.inp, call.out, self.deadline.left, call.native)
        parts.begun += 1
        return ticket


AnyMany: TypeAlias = Many | ManyOnDevices


class _Bucket:
    """The arrays of one part, which are copied to the host before its operation, and back after it.

    `fetch` begins to copy them, and `pack` waits until they are there, or does both. Then `call` is the operation.
    `unpack` begins to copy the results back.
    """

    def __init__(
        self, memory: PinnedMemory, part: Part, pairs: Sequence[Pair], in_place: bool, make: Make, deadline: Deadline
    ) -> None:
        self._memory: Final = memory
        self._part: Final = part
        self._pairs: Final = pairs
        self._make: Final = make
        self._deadline: Final = deadline
        self._bytes: Final = part.elements * part.dtype.itemsize
        self._out: Final = 0 if in_place else -(-self._bytes // _ALIGNMENT) * _ALIGNMENT  # where the output begins
        self._block: Block | None = None
        self._arriving: _engine.StagedCopy | None = None
        self._call: Call | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self._out + self._bytes

    @property
    def call(self) -> Call:
        assert self._call is not None
        return self._call

    def fetch(self) -> None:
        block = self._block = self._memory.take(self.nbytes, self._pairs[0][0].device)
        for stream in self._streams:
            block.native.begin(stream)
        self._arriving = block.native.fetch(self._copies(0, 0))
        inp, out = (block.memory[begin : begin + self._bytes].view(self._part.dtype) for begin in (0, self._out))
        self._call = self._make(inp, inp if self._out == 0 else out)

    def pack(self) -> None:
        if self._arriving is None:
            self.fetch()
        assert self._arriving is not None
        if not self._arriving.wait(self._deadline.left):
            raise OpTimeout("a copy from this rank's device was not complete in time: the stream is held up")

    def unpack(self) -> None:
        block = self._block
        assert block is not None
        block.native.put(self._copies(1, self._out))
        for stream in self._streams:
            block.native.end(stream)
        self._memory.give([block])
        self._block = self._arriving = self._call = None

    def _copies(self, which: int, begin: int) -> list[tuple[int, int, int]]:
        """Offset in host memory, address on the device and bytes of each array; `which` of each pair."""
        unit = self._part.dtype.itemsize
        starts = zip(self._part.starts, self._pairs, strict=True)
        return [(begin + start * unit, pair[which].address, pair[which].nbytes) for start, pair in starts]

    @property
    def _streams(self) -> list[int]:
        return sorted({array.stream for pair in self._pairs for array in pair})


class _Large:
    """A large array, which is copied while its operation runs."""

    def __init__(self, memory: PinnedMemory, pair: Pair, make: Make) -> None:
        self._memory: Final = memory
        self._pair: Final = pair
        self._make: Final = make
        self._call: Call | None = None

    @property
    def nbytes(self) -> int:
        return 2 * self._pair[0].nbytes

    @property
    def call(self) -> Call:
        assert self._call is not None
        return self._call

    def fetch(self) -> None:
        passing = Passing(self._memory)
        inp = passing.add(self._pair[0], read=True, written=False)
        out = passing.add(self._pair[1], read=False, written=True)
        self._call = self._make(inp, out).with_transfer(passing.transfer(early=True))

    def pack(self) -> None:
        if self._call is None:
            self.fetch()

    def unpack(self) -> None:
        self._call = None  # its end has copied the result


Step: TypeAlias = _Bucket | _Large


def _target(array: CudaArray) -> Target:
    return Target(_NOWHERE, result=array.origin, changed=partial(cuda.begin_write, array))
