"""Collectives of float32 arrays that are sent in fewer bytes, in a wire format.

Invariant: an array is divided into sections in the same way on every rank, and a section is encoded, sent and reduced,
and decoded; these three overlap for different sections. Each rank's own contribution is encoded exactly once, and all
ranks decode the same bytes, so results have the same bits on every rank.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays.array import Array, Dtype, Target, check_rows, output, reading, separate
from collectives.arrays.located import is_device_array
from collectives.arrays.recycle import Recycler
from collectives.arrays.wire import FLOAT32, Format, format_of
from collectives.calls.fusion import check_bucket_bytes, check_list
from collectives.calls.moves import Calls, Deadline
from collectives.calls.op import Reduction
from collectives.calls.operands import operands
from collectives.calls.part_way import PartWay
from collectives.calls.prepare import Shape
from collectives.calls.work import Ticket, Waiter, Work
from collectives.native import _engine

SECTION = 4 << 20  # bytes of float32 numbers that are encoded at a time
_SMALLEST: Final = 64 << 10  # bytes: smaller buckets are not worth an operation each
_AHEAD: Final = 4  # sections that a blocking call has in flight
_MOST_KEPT: Final = 256  # layouts: lists of ever new shapes must not fill the memory
OPS: Final = ("sum", "avg")  # of which there are wire formats
_BYTE: Final[Dtype] = np.dtype(np.uint8)


class Span(NamedTuple):
    """Numbers `start` to `stop` of array number `array` of a list, and the element `at` where their encoding begins."""

    array: int
    start: int
    stop: int
    at: int


class Section(NamedTuple):
    """What one operation of the engine sends. `inp`, `out`: numbers of elements of the encoded input and output.

    `ins`, `outs`: what is encoded before, and decoded after the operation.
    """

    inp: int
    out: int
    ins: tuple[Span, ...]
    outs: tuple[Span, ...]


class Step(NamedTuple):
    """A section with its operation. `in_place`: the operation writes its result over its input."""

    section: Section
    operation: _engine.Operation
    in_place: bool


class Encoded(NamedTuple):
    """An array of encoded numbers, at the beginning of `memory`."""

    array: Array
    memory: Array


class WiredCalls:
    """Prepares the calls of one communicator that have a wire format; keeps memory for encoded arrays."""

    def __init__(self, calls: Calls, memory: Callable[[int, Dtype], Array]) -> None:
        """`memory(count, dtype)` allocates an array, if possible in memory that other ranks can read directly."""
        self._calls: Final = calls
        self._memory: Final = memory
        self._free: Final[dict[int, list[Array]]] = {}  # by number of bytes
        self._recycler: Final = Recycler()
        self._layouts: Final[dict[tuple[tuple[int, ...], str, int], tuple[Section, ...]]] = {}

    @property
    def rank(self) -> int:
        return self._calls.rank

    def allreduce(
        self, x: Any, out: Any, timeout: float | None, op: Reduction, algorithm: str, wire: str, purpose: str = ""
    ) -> WiredCall:
        """An allreduce of one array. Raises TypeError or ValueError for arguments that do not fit a wire format."""
        form = _checked(wire, x, out, op)
        deadline = self._calls.limit(timeout)
        inp, target, _ = operands(x, out, True)
        assert target is not None
        _check_dtype(form, inp)
        return self._allreduce(form, [inp], [target], op, algorithm, purpose, deadline, SECTION, target.result)

    def allreduce_many(
        self, arrays: Any, out: Any, timeout: float | None, op: str, bucket_bytes: int, algorithm: str, wire: str
    ) -> WiredCall:
        """An allreduce of a list of arrays, of which no element has numbers of two. Raises TypeError, ValueError."""
        form = _checked(wire, None, None, op)
        deadline = self._calls.limit(timeout)
        hosts, targets = check_list(arrays, out, self._recycler, lambda x, y: _check_host(form, x, y))
        for i, x in enumerate(hosts):
            _check_dtype(form, x, f"array {i} of the list")
        most = check_bucket_bytes(bucket_bytes)
        results = [target.result for target in targets]
        if not hosts:
            return WiredCall(self, form, 1.0, (), [], [], (), [], deadline.left)
        return self._allreduce(form, hosts, targets, op, algorithm, f"many {most}", deadline, most, results)

    def reduce_scatter(
        self, x: Any, out: Any, timeout: float | None, op: Reduction, algorithm: str, wire: str
    ) -> WiredCall:
        """A reduce_scatter; each rank's rows are encoded apart. Raises TypeError or ValueError."""
        form = _checked(wire, x, out, op)
        deadline = self._calls.limit(timeout)
        inp = reading(x)
        _check_dtype(form, inp)
        size = self._calls.size
        rows = check_rows(inp, size, "reduce_scatter")
        target = output(out, (rows, *inp.shape[1:]), inp.dtype, x)
        separate(inp, target.host, "reduce_scatter")
        each = inp.size // size
        steps = []
        for start, stop in _cuts(each, form, max(SECTION // FLOAT32.itemsize // size, 1)):
            n = form.elements(stop - start)
            ins = tuple(Span(0, rank * each + start, rank * each + stop, rank * n) for rank in range(size))
            section = Section(n * size, n, ins, (Span(0, start, stop, 0),))
            steps.append(self._step("reduce_scatter", section, form, n * size, op, algorithm, f"of {inp.size}"))
        return self._call(form, steps, [inp], [target], target.result, deadline)

    def allgather(self, x: Any, out: Any, timeout: float | None, algorithm: str, wire: str) -> WiredCall:
        """An allgather; every rank gets the rounded numbers of all ranks, itself included."""
        form = _checked(wire, x, out)
        deadline = self._calls.limit(timeout)
        inp = reading(x)
        _check_dtype(form, inp)
        size = self._calls.size
        target = output(out, (size, *inp.shape), inp.dtype, x)
        separate(inp, target.host, "allgather")
        steps = []
        for start, stop in _cuts(inp.size, form, max(SECTION // FLOAT32.itemsize // size, 1)):
            n = form.elements(stop - start)
            outs = tuple(Span(0, rank * inp.size + start, rank * inp.size + stop, rank * n) for rank in range(size))
            section = Section(n, n * size, (Span(0, start, stop, 0),), outs)
            steps.append(self._step("allgather", section, form, n, "sum", algorithm, f"of {inp.size}"))
        call = self._call(form, steps, [inp], [target], target.result, deadline)
        return call._replace(factor=1.0)  # nothing is added up

    def _step(
        self,
        collective: str,
        section: Section,
        form: Format,
        agreed: int,
        op: Reduction,
        algorithm: str,
        purpose: str,
    ) -> Step:
        assert isinstance(op, str)
        in_place = collective == "allreduce"
        purpose = f"{purpose} wire {form.name}"
        shape = Shape(collective, form.element, section.inp, section.out, agreed, op, 0, in_place, purpose)
        prepared = self._calls.prepare.collective(shape, algorithm)
        return Step(section, prepared.operation, in_place and prepared.in_place)

    def _call(
        self,
        form: Format,
        steps: Sequence[Step],
        inputs: Sequence[Array],
        targets: Sequence[Target],
        result: Any,
        deadline: Deadline,
    ) -> WiredCall:
        outputs = [target.host.reshape(-1) for target in targets]
        factor = form.factor(self._calls.size)
        inputs = [x.reshape(-1) for x in inputs]
        return WiredCall(self, form, factor, tuple(steps), inputs, outputs, targets, result, deadline.left)

    def _allreduce(
        self,
        form: Format,
        inputs: Sequence[Array],
        targets: Sequence[Target],
        op: Reduction,
        algorithm: str,
        purpose: str,
        deadline: Deadline,
        section_bytes: int,
        result: Any,
    ) -> WiredCall:
        sizes = tuple(x.size for x in inputs)
        each = min(max(section_bytes, _SMALLEST), SECTION) // FLOAT32.itemsize
        key = (sizes, form.name, each)
        sections = self._layouts.get(key)
        if sections is None:
            if len(self._layouts) >= _MOST_KEPT:
                self._layouts.clear()
            sections = self._layouts[key] = divide(sizes, form, each)
        agreed = f"{purpose} {zlib.crc32(repr(key).encode())}"
        steps = [self._step("allreduce", one, form, one.inp, op, algorithm, agreed) for one in sections]
        return self._call(form, steps, inputs, targets, result, deadline)

    @property
    def kept(self) -> int:
        """Bytes of memory for encoded numbers that no call uses."""
        return sum(memory.nbytes for kept in [*self._free.values()] for memory in [*kept])

    def take(self, elements: int, dtype: Dtype) -> Encoded:
        """Returns memory for so many elements of encoded numbers. `give` takes it back."""
        nbytes = elements * dtype.itemsize
        room = 1 << max(nbytes - 1, 0).bit_length()  # of few sizes, so that arrays of all shapes share memory
        try:
            memory = self._free[room].pop()
        except (KeyError, IndexError):
            memory = self._memory(room, _BYTE)
        return Encoded(memory[:nbytes].view(dtype), memory)

    def give(self, encoded: Encoded) -> None:
        """Takes back memory that no operation uses any more."""
        self._free.setdefault(encoded.memory.nbytes, []).append(encoded.memory)


class WiredCall(NamedTuple):
    """A collective with a wire format, whose arguments have been checked. Implements `Ready`."""

    calls: WiredCalls
    form: Format
    factor: float
    steps: tuple[Step, ...]
    inputs: list[Array]
    outputs: list[Array]
    targets: Sequence[Target]
    result: Any
    seconds: float

    def begin(self) -> None:
        """Call `Target.begin` for each result."""
        for target in self.targets:
            target.begin()

    def encoded(self, step: Step) -> tuple[Encoded, Encoded]:
        """Encodes this rank's numbers of a section; returns memory for the operation's input and output."""
        section, form = step.section, self.form
        inp = self.calls.take(section.inp, form.element)
        for span in section.ins:
            end = span.at + form.elements(span.stop - span.start)
            form.encode(self.inputs[span.array][span.start : span.stop], inp.array[span.at : end], self.factor)
        return inp, inp if step.in_place else self.calls.take(section.out, form.element)

    def decode(self, step: Step, inp: Encoded, out: Encoded) -> None:
        """Writes the result of a section, and takes back its memory."""
        form = self.form
        for span in step.section.outs:
            end = span.at + form.elements(span.stop - span.start)
            numbers = self.outputs[span.array][span.start : span.stop]
            form.decode(out.array[span.at : end], numbers, 1.0 / self.factor)
        self.calls.give(inp)
        if out is not inp:
            self.calls.give(out)

    def run(self, group: _engine.Group, seconds: float) -> Any:
        self.begin()
        deadline = Deadline(seconds)
        if len(self.steps) == 1:
            step = self.steps[0]
            inp, out = self.encoded(step)
            group.run(step.operation, inp.array, out.array, deadline.left)
            self.decode(step, inp, out)
            return self.result
        flying = InFlight(self)
        with self._part_way(group) as parts:
            for step in self.steps:
                flying.start(group, step, deadline)
                parts.begun += 1
                flying.advance(_AHEAD)
        flying.wait(None)
        return self.result

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        """Returns when all sections are encoded. They are decoded when the caller waits for the returned `Work`."""
        self.begin()
        deadline = Deadline(seconds)
        flying = InFlight(self)
        with self._part_way(group) as parts:
            for step in self.steps:
                flying.start(group, step, deadline)
                parts.begun += 1
        return Work(flying, lambda: self.result, waiter, owner)

    def _part_way(self, group: _engine.Group) -> PartWay:
        return PartWay(group, self.calls.rank, "a call with a wire format", len(self.steps), "sections")


class InFlight:
    """The sections of one call that the engine reduces, in their order. `wait` decodes each when it is complete."""

    __slots__ = ("_call", "_last", "_lock", "_started")

    def __init__(self, call: WiredCall) -> None:
        self._call: Final = call
        self._lock: Final = threading.Lock()
        self._started: Final[deque[tuple[Step, Encoded, Encoded, Ticket]]] = deque()
        self._last: Ticket | None = None

    def start(self, group: _engine.Group, step: Step, deadline: Deadline) -> None:
        """Encodes a section and starts its operation."""
        inp, out = self._call.encoded(step)
        self._last = group.start(step.operation, inp.array, out.array, deadline.left)
        self._started.append((step, inp, out, self._last))

    def advance(self, most: int) -> None:
        """Decodes the sections that are complete; waits until at most `most` are not."""
        while self._started and (len(self._started) > most or self._started[0][3].done()):
            self._finish(None)

    def done(self) -> bool:
        return self._last is None or self._last.done()

    def wait(self, timeout: float | None) -> None:
        """Decodes all sections; raises OpTimeout after `timeout` seconds, and may be called again then."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._started:
                self._finish(None if end is None else max(0.0, end - time.monotonic()))

    def _finish(self, timeout: float | None) -> None:
        step, inp, out, ticket = self._started[0]
        ticket.wait(timeout)
        self._started.popleft()
        self._call.decode(step, inp, out)


def divide(sizes: Sequence[int], form: Format, most: int) -> tuple[Section, ...]:
    """Divides a list of arrays into sections of at most about `most` numbers, for an allreduce.

    `sizes`: how many numbers each array has. Arrays are divided between elements, and no element has numbers of two
    arrays. There is at least one section.
    """
    total = sum(form.elements(n) for n in sizes)
    count = max(1, -(-total * form.numbers // max(most, form.numbers)))
    room = max(1, -(-total // count))  # elements
    done: list[Section] = []
    spans: list[Span] = []
    filled = 0
    for array, size in enumerate(sizes):
        start = 0
        while start < size:
            stop = min(size, start + (room - filled) * form.numbers)
            spans.append(Span(array, start, stop, filled))
            filled += form.elements(stop - start)
            start = stop
            if filled == room:
                done.append(Section(filled, filled, tuple(spans), tuple(spans)))
                spans, filled = [], 0
    if spans or not done:
        done.append(Section(filled, filled, tuple(spans), tuple(spans)))
    return tuple(done)


def _cuts(size: int, form: Format, most: int) -> list[tuple[int, int]]:
    """The beginnings and ends of about equal parts of at most about `most` of `size` numbers; at least one part."""
    sections = divide([size], form, most)
    return [(span.start, span.stop) for section in sections for span in section.ins] or [(0, 0)]


def _check_host(form: Format, x: Any, out: Any) -> None:
    if is_device_array(x) or is_device_array(out):
        raise TypeError(f"wire={form.name!r} is for arrays in host memory: this one is on a device")


def _checked(wire: str, x: Any, out: Any, op: Reduction = "sum") -> Format:
    """Returns the format; raises TypeError or ValueError unless it fits op and arrays in host memory."""
    form = format_of(wire)
    if not isinstance(op, str) or op not in OPS:
        raise ValueError(f"wire={wire!r} is for the ops {' and '.join(OPS)}, not {op!r}")
    _check_host(form, x, out)
    return form


def _check_dtype(form: Format, x: Array, name: str = "x") -> None:
    if x.dtype != FLOAT32:
        raise TypeError(f"wire={form.name!r} is for float32 arrays, but {name} has dtype {x.dtype}")
