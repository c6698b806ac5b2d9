"""Prepares operations of the C++ engine: chooses an algorithm, compiles it, and adds the sizes of the arrays.

Invariant: ranks that make the same call prepare the same operation. It is cached, so a repeated call needs one lookup.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from collectives.algorithms import registry
from collectives.arrays.dtypes import FLOAT0, Dtype, engine_name, moved_name
from collectives.native import _engine
from collectives.native.spelling import hint
from collectives.schedule.algorithm import Algorithm, schedule_of
from collectives.schedule.compile import RECV, SEND, CompiledStep, program
from collectives.schedule.defaults import DEFAULTS
from collectives.schedule.form import IN, OUT, Schedule
from collectives.schedule.layout import Layout
from collectives.schedule.select import Choice, select, select_wire
from collectives.schedule.table import Row, Situation, Table

Parts: TypeAlias = "int | tuple[int, ...]"  # number of elements, divided equally; or the number in each rank's part

SECTION: Final = 2 << 20  # bytes of an array: an allreduce runs all steps on them before it goes on
_BYTE: Final = np.dtype(np.uint8)
_FLOAT: Final = np.dtype(np.float32)
_MOST_KEPT = 1024  # prepared operations: calls of ever new shapes must not fill the memory


class Shape(NamedTuple):
    """All that the C++ engine has to know about a collective, apart from its arrays and algorithm.

    - `inp`, `out`: the number of elements of input and output. If the number differs between ranks, a tuple with the
      number for each rank
    - `agreed`: a number of elements that has to be the same on all ranks; 0 if ranks may differ
    - `in_place`: whether input and output are the same memory
    - `purpose`: a text that ranks compare before the collective, to notice that they call different collectives
    - `call_bytes`: the bytes of all results of a call that consists of several collectives; else 0
    - `divisor`: of an average, if the arrays are sums already: the number of ranks that they are of; else 0
    """

    collective: str
    dtype: Dtype
    inp: Parts
    out: Parts
    agreed: int
    op: str = "sum"
    root: int = 0
    in_place: bool = False
    purpose: str = ""
    call_bytes: int = 0
    divisor: int = 0

    @property
    def uneven(self) -> bool:
        return isinstance(self.inp, tuple) or isinstance(self.out, tuple)

    @property
    def nbytes(self) -> int:
        """The size of the input or output array in bytes, whichever is larger; algorithms are chosen by this size.

        It is 0 for alltoallv, in which no rank knows the sizes on all ranks.
        """
        if isinstance(self.inp, tuple) and isinstance(self.out, tuple):
            return 0
        return max(_total(self.inp), _total(self.out)) * self.dtype.itemsize


class Prepared(NamedTuple):
    """An operation of the C++ engine. `in_place`: its algorithm also works if input and output are the same memory."""

    operation: _engine.Operation
    in_place: bool


class Preparer:
    """Prepares and caches the operations of one communicator."""

    def __init__(self, rank: int, situation: Situation, layout: Layout) -> None:
        self.rank: Final = rank
        self.size: Final = situation.size
        self.situation: Final = situation
        self.layout: Final = layout
        self.table: Table = DEFAULTS
        self._kept: dict[tuple[Shape, str], Prepared] = {}
        self._messages: dict[tuple[int, int | None, Dtype, int], _engine.Operation] = {}
        self._admitted: set[tuple[Shape, str]] = set()
        self._wires: dict[tuple[str, int], Choice] = {}
        self.algorithm_names: dict[int, str] = {}  # by their codes in fingerprints

    def collective(self, shape: Shape, algorithm: str) -> Prepared:
        """Returns the C++ engine's operation for a collective with this `shape`. Operations are cached.

        Raises TypeError or ValueError for an invalid algorithm, or an op that the dtype does not support.
        """
        key = (shape, algorithm)
        try:
            return self._kept[key]
        except (KeyError, TypeError):  # not hashable: refused below, with a better message
            pass
        shape = _carried(shape)
        chosen, _, _ = self.choose(shape, algorithm)
        aliased = shape.in_place and chosen.in_place
        operation = self._operation(shape, chosen, aliased, self.at_a_time(shape))
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        prepared = self._kept[key] = Prepared(operation, chosen.in_place)
        return prepared

    def apart(self, shape: Shape, algorithm: str) -> tuple[Algorithm, _engine.Operation]:
        """Returns the algorithm, and an operation in one section with separate input and output memory; not cached.

        Raises TypeError or ValueError as `collective` does.
        """
        shape = _carried(shape)
        chosen, _, _ = self.choose(shape, algorithm)
        return chosen, self._operation(shape, chosen, False, 0)

    def _operation(self, shape: Shape, chosen: Algorithm, aliased: bool, at_a_time: int) -> _engine.Operation:
        """`shape`: with a dtype that the engine can send."""
        dtype, op = _codes(shape.dtype, shape.op)
        code = _engine.COLLECTIVES[shape.collective]
        grid = self.schedule(chosen, shape.root).grid
        compiled = program(chosen, self.rank, self.size, shape.root, aliased, self.layout, self.table.in_order)
        stands_for = _hash(chosen.name, shape)
        self.algorithm_names[stands_for] = chosen.name
        return _engine.Operation(
            compiled,
            dtype,
            op,
            _bounds(shape.inp, grid[0]),
            _bounds(shape.out, grid[1]),
            (code, op, dtype, shape.agreed, shape.root, stands_for),
            at_a_time,
            call_bytes=shape.call_bytes,
            divisor=shape.divisor,
        )

    def check_op_name(self, op: str) -> None:
        """Raises ValueError if there is no such `op`."""
        if op not in _engine.OPS:
            raise ValueError(f"unknown op {op!r}{hint(op, _engine.OPS)}; there are {', '.join(_engine.OPS)}")

    def check_op(self, dtype: Dtype, op: str) -> None:
        """Raises ValueError if there is no such `op`, TypeError if it does not fit `dtype`."""
        _codes(dtype, op)

    def check(self, shape: Shape, algorithm: str) -> bool:
        """Returns whether the algorithm for this `shape` works with input and output in the same memory.

        Raises TypeError or ValueError for an invalid algorithm, or an op that the dtype does not support.
        """
        shape = _carried(shape)
        chosen, _, _ = self.choose(shape, algorithm)
        _codes(shape.dtype, shape.op)
        return chosen.in_place

    def admit(self, shape: Shape, algorithm: str) -> None:
        """Checks `algorithm` when the sizes of the arrays are not known yet.

        Raises TypeError or ValueError if it is not "auto" or the name of an algorithm that works for this collective.
        """
        key = (shape, algorithm)
        try:
            if key in self._admitted:
                return
        except TypeError:  # not hashable: refused below, with a better message
            pass
        self.choose(shape, algorithm)
        if len(self._admitted) >= _MOST_KEPT:
            self._admitted.clear()
        self._admitted.add(key)

    def sending(self, dest: int, dtype: Dtype, count: int) -> _engine.Operation:
        """The operation that sends `count` elements to `dest`."""
        return self._message(SEND, dest, dtype, count)

    def receiving(self, source: int | None, dtype: Dtype, count: int) -> _engine.Operation:
        """The C++ engine's operation that receives up to `count` elements from rank `source`; None means any rank."""
        return self._message(RECV, source, dtype, count)

    def _message(self, kind: int, peer: int | None, dtype: Dtype, count: int) -> _engine.Operation:
        key = (kind, peer, dtype, count)
        found = self._messages.get(key)
        if found is not None:
            return found
        peers = tuple(range(self.size)) if peer is None else (peer,)
        step = CompiledStep(kind, peers, (OUT if kind == RECV else IN, 0, 1))
        compiled = _engine.Program(self.rank, self.size, (1, 1), (), (step,))
        shape = _carried(Shape("send", dtype, count, count, count))
        assert isinstance(shape.inp, int)
        code, op = _codes(shape.dtype, "sum")
        source = self.rank if kind == SEND else peer or 0
        operation = _engine.Operation(
            compiled,
            code,
            op,
            shape.inp if kind == SEND else 0,
            shape.inp if kind == RECV else 0,
            (_engine.COLLECTIVES["send"], op, code, shape.agreed, source, zlib.crc32(shape.purpose.encode())),
        )
        if len(self._messages) >= _MOST_KEPT:
            self._messages.clear()
        self._messages[key] = operation
        return operation

    def part(
        self, shape: Shape, code: int, kind: int, peers: tuple[int, ...], count: int, first: bool
    ) -> _engine.Operation:
        """The C++ engine's operation for one message of a collective whose `op` is a Python function.

        `code`: a hash of the algorithm and the function's properties, by which ranks notice that these differ. `kind`:
        SEND or RECV. `peers`: the receivers, or the sender. `count`: in elements. `first`: whether this is the rank's
        first message of the collective.
        """
        step = CompiledStep(kind, peers, (OUT if kind == RECV else IN, 0, 1))
        compiled = _engine.Program(self.rank, self.size, (1, 1), (), (step,))
        dtype, op = _codes(shape.dtype, "sum")
        collective = _engine.COLLECTIVES[shape.collective]
        return _engine.Operation(
            compiled,
            dtype,
            op,
            count if kind == SEND else 0,
            count if kind == RECV else 0,
            (collective, _engine.CALLER_OP, dtype, shape.agreed, shape.root, code),
            part=_engine.PART_FIRST if first else _engine.PART_OTHER,
        )

    def agreement(
        self, collective: str, dtype: str, op: str, root: int, code: int, count: int = 0
    ) -> _engine.Operation:
        """A barrier in which ranks check that they make the same call, before an engine of another package runs it.

        `collective`, `dtype`, `op`, `root` and `count` (of elements, 0 if ranks may differ) describe the call. `code`:
        a hash of everything else in which ranks must agree.
        """
        barrier = registry.get("barrier", "dissemination")
        compiled = program(barrier, self.rank, self.size, 0, False, self.layout)
        kind = _engine.DTYPES.get(dtype, _engine.DTYPES["uint8"])
        named = _engine.OPS.get(op, _engine.OPS["sum"])
        identity = (_engine.COLLECTIVES[collective], named, kind, count, root, code)
        return _engine.Operation(compiled, _engine.DTYPES["uint8"], _engine.OPS["bor"], 1, 1, identity)

    def at_a_time(self, shape: Shape) -> int:
        """The number of elements in a section of an allreduce's array; 0 if the array is not divided into sections.

        All steps of the algorithm run on one section before the next. An allreduce over TCP on one machine is divided
        into sections. So reduced data is still in the processor's caches when it is sent. Sections are possible because
        each element of the result depends only on the elements at the same index.
        """
        if (
            shape.collective != "allreduce"
            or shape.divisor
            or self.situation.kind != "tcp"
            or self.situation.hosts != 1
        ):
            return 0
        return SECTION // shape.dtype.itemsize

    def kept(self) -> list[_engine.Operation]:
        """The cached operations."""
        return [prepared.operation for prepared in self._kept.copy().values()] + list(self._messages.copy().values())

    def use(self, table: Table) -> None:
        """From now on, choose algorithms by the rows of `table`.

        All ranks have to call this with the same table, before their first collective with algorithm "auto".
        """
        self.table = table
        self._kept.clear()
        self._admitted.clear()
        self._wires.clear()

    def wire(self, collective: str, nbytes: int) -> Choice:
        """Returns the wire format that wire="auto" stands for, as `select_wire` does, for float32 arrays; cached.

        `nbytes`: the size of the input or output, whichever is larger.
        """
        key = (collective, nbytes)
        found = self._wires.get(key)
        if found is None:
            if len(self._wires) >= _MOST_KEPT:
                self._wires.clear()
            found = self._wires[key] = select_wire(collective, nbytes, self.situation, self.table)
        return found

    def schedule(self, algorithm: Algorithm, root: int = 0) -> Schedule:
        """This rank's schedule, cached."""
        return schedule_of(algorithm, self.rank, self.size, root, self.layout)

    def choose(self, shape: Shape, algorithm: str) -> tuple[Algorithm, str, Row | None]:
        """Chooses the algorithm; returns it, a text that says why, and the row of the table that chose it.

        The row is None if `algorithm` is a name, because no table is used then. Raises TypeError or ValueError if
        `algorithm` is not "auto" or the name of an algorithm that works for this `shape`.
        """
        if not isinstance(algorithm, str):
            raise TypeError(f"algorithm must be a name, not {algorithm!r}")
        usable = {a.name: a for a in registry.algorithms(shape.collective, self.size, uneven=shape.uneven)}
        if algorithm == "auto":
            choice = select(shape.collective, shape.nbytes, self.situation, usable.__contains__, self.table)
            return usable[choice.algorithm], choice.reason, choice.row
        known = registry.get(shape.collective, algorithm)
        if known.name not in usable:
            what = " with unequal parts" if shape.uneven else ""
            there_are = ", ".join(usable) or "none"
            raise ValueError(
                f"{shape.collective} {known.name} does not work for {self.size} ranks{what}; those that do: {there_are}"
            )
        return known, "asked for", None


def _carried(shape: Shape) -> Shape:
    """Returns `shape` with a dtype that the engine can send; `purpose` names the dtype that it replaces."""
    narrow = moved_name(shape.dtype)
    if narrow is not None:
        return shape._replace(dtype=_BYTE, purpose=f"{shape.purpose} {narrow}")
    if shape.dtype == FLOAT0:  # no data is sent
        inp, out = (0 if isinstance(parts, int) else (0,) * len(parts) for parts in (shape.inp, shape.out))
        return shape._replace(dtype=_FLOAT, inp=inp, out=out, agreed=0, purpose=f"{shape.purpose} float0")
    return shape


def _codes(dtype: Dtype, op: str) -> tuple[int, int]:
    """Engine numbers of `dtype` and `op`. TypeError if `op` does not fit `dtype`; ValueError if it is unknown."""
    name = engine_name(dtype)
    assert name is not None, dtype
    try:
        code = _engine.OPS[op]
    except KeyError:
        raise ValueError(f"unknown op {op!r}{hint(op, _engine.OPS)}; there are {', '.join(_engine.OPS)}") from None
    except TypeError:
        raise TypeError(f"op must be a name, not {op!r}") from None
    if not _engine.supports(_engine.DTYPES[name], code):
        fitting = ", ".join(o for o, c in _engine.OPS.items() if _engine.supports(_engine.DTYPES[name], c))
        raise TypeError(f"op {op!r} has no meaning for dtype {name}; these have: {fitting}")
    return _engine.DTYPES[name], code


def _total(parts: Parts) -> int:
    return parts if isinstance(parts, int) else sum(parts)


def bounds(parts: Parts, blocks: int) -> list[int]:
    """The offsets, in elements, at which the blocks of a buffer begin; the last item is the end of the last block.

    `parts`: the number of elements of the buffer, or a tuple with the number for each rank. `blocks`: how many blocks
    the buffer has.
    """
    found = _bounds(parts, blocks)
    if not isinstance(found, int):
        return [int(offset) for offset in found]
    return [0 if blocks == 0 else found * b // blocks for b in range(blocks + 1)]


def _bounds(parts: Parts, blocks: int) -> int | npt.NDArray[np.int64]:
    """What the engine needs to divide a buffer into blocks: a number of elements to divide equally, or the offsets.

    The offsets are returned if the parts of ranks differ in size: each part is divided into equally many blocks.
    """
    if isinstance(parts, int):
        return parts
    each = blocks // len(parts)
    offsets, start = [0], 0
    for part in parts:
        offsets += [start + part * (b + 1) // each for b in range(each)]
        start += part
    return np.array(offsets, np.int64)


def _hash(algorithm: str, shape: Shape) -> int:
    return zlib.crc32(f"{algorithm} {shape.uneven} {shape.purpose}".encode())
