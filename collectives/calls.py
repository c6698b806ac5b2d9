"""From the arguments of a call to what the engine runs: one function per collective.

Invariant: arguments are checked completely before anything is sent. Where lengths or shapes have to travel
first, every rank learns of a mismatch, and of a refusal by the root, so that none waits for the others.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.arrays import (
    Array,
    Dtype,
    Target,
    check_counts,
    check_rank,
    check_rows,
    check_timeout,
    fresh,
    in_place,
    output,
    reading,
    separate,
    updating,
    writing,
)
from collectives.header import Header, kind, pack, unpack
from collectives.prepare import Preparer, Shape
from native import _engine
from native.errors import Aborted, DesyncError

_INT64: Final = np.dtype(np.int64)
_LOGICAL: Final = ("land", "lor", "lxor")
_BYTE: Final = np.dtype(np.uint8)


class Deadline:
    """A moment by which all steps of one call have to be done."""

    __slots__ = ("_end",)

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


class Call(NamedTuple):
    """An operation with its memory. `target` is None where this rank gets nothing.

    `repeatable`: the same operation does for other arrays that are like these.
    """

    operation: _engine.Operation
    inp: Array | None
    out: Array | None
    target: Target | None
    seconds: float
    repeatable: bool = True

    def deliver(self) -> Any:
        return None if self.target is None else self.target.deliver()


class Calls:
    """Prepares the calls of one communicator; the caller sees to it that one thread at a time does.

    Functions of one array take (x, out, timeout, and what the operation depends on besides x's shape and dtype);
    `out` is the result's array where the caller may give one.
    """

    def __init__(self, group: _engine.Group, preparer: Preparer, timeout: float) -> None:
        self._group: Final = group
        self.prepare: Final = preparer
        self.timeout: Final = timeout

    @property
    def size(self) -> int:
        return self.prepare.size

    @property
    def rank(self) -> int:
        return self.prepare.rank

    def limit(self, timeout: float | None) -> Deadline:
        return Deadline(self.timeout if timeout is None else check_timeout(timeout))

    # --- one array in, one of the same kind out

    def allreduce(self, x: Any, out: Any, timeout: float | None, op: str, algorithm: str, purpose: str = "") -> Call:
        return self._reduction("allreduce", x, out, timeout, op, 0, algorithm, purpose)

    def check_allreduce(self, dtype: Dtype, count: int, op: str, algorithm: str) -> bool:
        """Refuse, as `allreduce` would, what cannot be for such an array; whether it needs no copy in place."""
        return self.prepare.check(Shape("allreduce", dtype, count, count, count, op, 0, True), algorithm)

    def reduce(self, x: Any, out: Any, timeout: float | None, op: str, root: int, algorithm: str) -> Call:
        return self._reduction("reduce", x, out, timeout, op, check_rank(root, self.size, "root"), algorithm)

    def _reduction(
        self,
        collective: str,
        x: Any,
        out: Any,
        timeout: float | None,
        op: str,
        root: int,
        algorithm: str,
        purpose: str = "",
    ) -> Call:
        deadline = self.limit(timeout)
        receives = collective == "allreduce" or root == self.rank
        target: Target | None
        if out is x and out is not None:
            target = updating(x)
            inp, same = target.host, True
        else:
            inp = reading(x)
            # An `out` is checked on every rank alike, so that a wrong one does not leave the others waiting.
            target = output(out, inp.shape, inp.dtype, x) if receives or out is not None else None
            same = target is not None and in_place(inp, target.host)
        n, same = inp.size, same and receives
        shape = Shape(collective, inp.dtype, n, n, n, op, root, same, purpose)
        prepared = self.prepare.collective(shape, algorithm)
        if same and target is not None:
            inp = target.host if prepared.in_place else inp.copy()
        if not receives or target is None:
            return Call(prepared.operation, inp, None, None, deadline.left)
        return self._truth(Call(prepared.operation, inp, target.host, target, deadline.left), op)

    def _truth(self, call: Call, op: str) -> Call:
        """Logical ops give 0 and 1, also where a lone rank has nothing to combine."""
        if self.size > 1 or op not in _LOGICAL or call.inp is None:
            return call
        return call._replace(inp=(call.inp != 0).astype(call.inp.dtype), repeatable=False)

    def broadcast(self, x: Any, _out: Any, timeout: float | None, root: int, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        root = check_rank(root, self.size, "root")
        target = Target(_writable(reading(x)), result=x) if root == self.rank else writing(x, "x")
        shape = Shape("broadcast", target.host.dtype, 0, target.host.size, target.host.size, root=root)
        prepared = self.prepare.collective(shape, algorithm)
        return Call(prepared.operation, None, target.host, target, deadline.left)

    def allgather(self, x: Any, out: Any, timeout: float | None, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        inp = reading(x)
        target = output(out, (self.size, *inp.shape), inp.dtype, x)
        separate(inp, target.host, "allgather")
        shape = Shape("allgather", inp.dtype, inp.size, inp.size * self.size, inp.size)
        return self._two(shape, inp, target, algorithm, deadline)

    def reduce_scatter(self, x: Any, out: Any, timeout: float | None, op: str, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        inp = reading(x)
        rows = check_rows(inp, self.size, "reduce_scatter")
        target = output(out, (rows, *inp.shape[1:]), inp.dtype, x)
        separate(inp, target.host, "reduce_scatter")
        shape = Shape("reduce_scatter", inp.dtype, inp.size, inp.size // self.size, inp.size, op)
        return self._truth(self._two(shape, inp, target, algorithm, deadline), op)

    def alltoall(self, x: Any, out: Any, timeout: float | None, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        inp = reading(x)
        check_rows(inp, self.size, "alltoall")
        target = output(out, inp.shape, inp.dtype, x)
        separate(inp, target.host, "alltoall")
        shape = Shape("alltoall", inp.dtype, inp.size, inp.size, inp.size)
        return self._two(shape, inp, target, algorithm, deadline)

    def gather(self, x: Any, _out: Any, timeout: float | None, root: int, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        root = check_rank(root, self.size, "root")
        inp = reading(x)
        target = fresh((self.size, *inp.shape), inp.dtype, x) if root == self.rank else None
        shape = Shape("gather", inp.dtype, inp.size, inp.size * self.size, inp.size, root=root)
        return self._two(shape, inp, target, algorithm, deadline)

    def barrier(self, x: Array, out: Array, timeout: float | None, algorithm: str) -> Call:
        """`x` and `out` have one byte, which carries the order: messages without data depend on nothing."""
        deadline = self.limit(timeout)
        prepared = self.prepare.collective(Shape("barrier", x.dtype, 1, 1, 0, "bor"), algorithm)
        return Call(prepared.operation, x, out, None, deadline.left)

    # --- from one rank to another

    def send(self, x: Any, _out: Any, timeout: float | None, dest: int) -> Call:
        deadline = self.limit(timeout)
        dest = self._another(dest, "dest")
        inp = reading(x)
        operation = self.prepare.message(self.rank, dest, inp.dtype, inp.size)
        return Call(operation, inp, None, None, deadline.left)

    def recv(self, out: Any, _out: Any, timeout: float | None, source: int) -> Call:
        deadline = self.limit(timeout)
        source = self._another(source, "source")
        target = writing(out)
        operation = self.prepare.message(source, self.rank, target.host.dtype, target.host.size)
        return Call(operation, None, target.host, target, deadline.left)

    def _another(self, value: int, name: str) -> int:
        rank = check_rank(value, self.size, name)
        if rank == self.rank:
            raise ValueError(f"{name} is {rank}, which is this rank itself")
        return rank

    # --- where the shape of the result travels first

    def scatter(self, x: Any, root: int, algorithm: str, timeout: float | None) -> Call:
        return self._scatter("scatter", x, None, root, algorithm, timeout)

    def scatterv(self, x: Any, counts: Any, root: int, algorithm: str, timeout: float | None) -> Call:
        return self._scatter("scatterv", x, counts, root, algorithm, timeout)

    def _scatter(self, name: str, x: Any, counts: Any, root: int, algorithm: str, timeout: float | None) -> Call:
        deadline = self.limit(timeout)
        root = check_rank(root, self.size, "root")
        self.prepare.admit(Shape("scatter", _BYTE, 0, 0 if name == "scatter" else (), 0, root=root), algorithm)
        inp, rows = None, np.ones(self.size, np.int64)
        if root == self.rank:
            try:
                inp = _with_rows(reading(x), name)
                if name == "scatterv":
                    rows = check_counts(counts, self.size, inp.shape[0])
                elif inp.shape[0] != self.size:
                    raise ValueError(f"scatter divides x among {self.size} ranks, but x has shape {inp.shape}")
            except BaseException:
                self._from_root(pack(None, rows), root, name, deadline)
                raise
        header = unpack(self._from_root(pack(inp, rows), root, name, deadline), self.size)
        if header is None:
            raise Aborted(f"{name}: rank {root}, the root, was given arguments that it refused")
        return self._scatter_data(header, name, inp, x, root, algorithm, deadline)

    def _scatter_data(
        self, header: Header, name: str, inp: Array | None, x: Any, root: int, algorithm: str, deadline: Deadline
    ) -> Call:
        row = header.row_elements
        mine = header.rows[self.rank]
        result = header.trailing if name == "scatter" else (mine, *header.trailing)
        target = fresh(result, header.dtype, x if inp is not None else None)
        if name == "scatter":
            shape = Shape("scatter", header.dtype, row * self.size, row, row, root=root)
        else:
            shape = Shape("scatter", header.dtype, tuple(r * row for r in header.rows), mine * row, 0, root=root)
        return self._two(shape, inp, target, algorithm, deadline)

    def allgatherv(self, x: Any, algorithm: str, timeout: float | None) -> Call:
        return self._gather("allgather", x, 0, algorithm, timeout)

    def gatherv(self, x: Any, root: int, algorithm: str, timeout: float | None) -> Call:
        return self._gather("gather", x, check_rank(root, self.size, "root"), algorithm, timeout)

    def _gather(self, collective: str, x: Any, root: int, algorithm: str, timeout: float | None) -> Call:
        deadline = self.limit(timeout)
        inp = _with_rows(reading(x), f"{collective}v")
        self.prepare.admit(Shape(collective, inp.dtype, 0, (), 0, root=root), algorithm)
        mine = np.array([inp.shape[0], kind(inp)], np.int64)
        everyones = np.empty((self.size, 2), np.int64)
        self._exchange(
            Shape("allgather", _INT64, 2, 2 * self.size, 2, purpose=f"{collective}v"), mine, everyones, deadline
        )
        rows = self._matching(everyones, inp, f"{collective}v")
        row = math.prod(inp.shape[1:])
        receives = collective == "allgather" or root == self.rank
        target = fresh((sum(rows), *inp.shape[1:]), inp.dtype, x) if receives else None
        shape = Shape(collective, inp.dtype, inp.size, tuple(r * row for r in rows), 0, root=root)
        return self._two(shape, inp, target, algorithm, deadline)

    def alltoallv(self, x: Any, counts: Any, algorithm: str, timeout: float | None) -> Call:
        deadline = self.limit(timeout)
        inp = _with_rows(reading(x), "alltoallv")
        leaving = check_counts(counts, self.size, inp.shape[0])
        self.prepare.admit(Shape("alltoall", inp.dtype, (), (), 0), algorithm)
        mine = np.stack([leaving, np.full(self.size, kind(inp), np.int64)], axis=1)
        everyones = np.empty((self.size, 2), np.int64)
        n = 2 * self.size
        self._exchange(Shape("alltoall", _INT64, n, n, n, purpose="alltoallv"), mine, everyones, deadline)
        rows = self._matching(everyones, inp, "alltoallv")
        row = math.prod(inp.shape[1:])
        target = fresh((sum(rows), *inp.shape[1:]), inp.dtype, x)
        shape = Shape("alltoall", inp.dtype, tuple(int(c) * row for c in leaving), tuple(r * row for r in rows), 0)
        return self._two(shape, inp, target, algorithm, deadline)

    # --- common parts

    def _two(self, shape: Shape, inp: Array | None, target: Target | None, algorithm: str, deadline: Deadline) -> Call:
        operation = self.prepare.collective(shape, algorithm).operation
        return Call(operation, inp, None if target is None else target.host, target, deadline.left)

    def _exchange(self, shape: Shape, inp: Array | None, out: Array, deadline: Deadline) -> None:
        """A small collective that has to be complete before the call itself can be prepared."""
        operation = self.prepare.collective(shape, "auto").operation
        self._group.run(operation, inp, out, deadline.left)

    def _from_root(
        self, header: npt.NDArray[np.int64], root: int, name: str, deadline: Deadline
    ) -> npt.NDArray[np.int64]:
        shape = Shape("broadcast", _INT64, 0, header.size, header.size, root=root, purpose=name)
        self._exchange(shape, None, header, deadline)
        return header

    def _matching(self, everyones: npt.NDArray[np.int64], inp: Array, name: str) -> list[int]:
        """Every rank's rows. Raises DesyncError, on every rank, where dtypes or the shapes of rows differ."""
        kinds = everyones[:, 1]
        differing = np.flatnonzero(kinds != kind(inp)).tolist()
        if differing:
            raise DesyncError(
                f"{name}: rank {self.rank} passes rows of shape {inp.shape[1:]} and dtype {inp.dtype}, "
                f"but ranks {differing} pass rows of another shape or dtype"
            )
        return [int(r) for r in everyones[:, 0]]


def _with_rows(x: Array, name: str) -> Array:
    if x.ndim == 0:
        raise ValueError(f"{name} divides or joins along the first axis, but x is 0-d")
    return x


def _writable(x: Array) -> Array:
    """The engine reads the root's part of a broadcast where other ranks write theirs."""
    return x if x.flags.writeable else x.copy()
