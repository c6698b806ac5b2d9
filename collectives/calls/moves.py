"""Turns the arguments of collectives that do not reduce into operations of the C++ engine: a method for each.

Invariant: arguments are checked completely before anything is sent. In calls that exchange lengths or shapes first, all
ranks learn of a mismatch, or of invalid arguments on the root, so that no rank waits for messages that never come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collectives.arrays.array import (
    Array,
    Target,
    check_counts,
    check_rank,
    check_rows,
    check_timeout,
    fresh,
    output,
    reading,
    separate,
    updating,
    with_rows,
)
from collectives.calls.call import Call
from collectives.calls.header import Described, Header, kind, pack, unpack
from collectives.calls.prepare import Preparer, Shape
from collectives.native import _engine
from collectives.native.errors import Aborted, DesyncError

_INT64: Final = np.dtype(np.int64)
_BYTE: Final = np.dtype(np.uint8)


class Deadline:
    """A moment by which all steps of one call have to be done."""

    __slots__ = ("_end",)

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


class Calls:
    """Checks the arguments of one communicator's collectives, and returns objects that run them.

    There is a method for each collective. Its parameters are `x`, `out` and `timeout`, then the other arguments of the
    collective. `out` is an array for the result; the parameter is named `_out` if the collective does not use it. Not
    thread-safe: the caller makes sure that only one thread at a time uses this object.
    """

    def __init__(self, group: _engine.Group, preparer: Preparer, timeout: float) -> None:
        self._group: Final = group
        self.prepare: Final = preparer
        self.timeout: Final = timeout
        self.outside: Callable[[], None] | None = None  # raises inside a `group()` block

    @property
    def size(self) -> int:
        return self.prepare.size

    @property
    def rank(self) -> int:
        return self.prepare.rank

    def limit(self, timeout: float | None) -> Deadline:
        return Deadline(self.timeout if timeout is None else check_timeout(timeout))

    # --- receivers know the shape of the result

    def broadcast(self, x: Any, _out: Any, timeout: float | None, root: int, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        root = check_rank(root, self.size, "root")
        if root == self.rank and type(x) is np.ndarray:  # x is only read, so its layout does not matter
            target = Target(_writable(reading(x, moved=True)), result=x)
        else:
            # Every rank, including the root, has to refuse objects that can never be written, such as bytes or a JAX
            # array.
            target = updating(x, moved=True)
            if root == self.rank and target.origin is not None:  # the array's library need not copy it back
                target = Target(target.host, result=x)
        shape = Shape("broadcast", target.host.dtype, 0, target.host.size, target.host.size, root=root)
        prepared = self.prepare.collective(shape, algorithm)
        return Call(prepared.operation, None, target.host, target, deadline.left)

    def allgather(self, x: Any, out: Any, timeout: float | None, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        inp = reading(x, moved=True)
        target = output(out, (self.size, *inp.shape), inp.dtype, x, moved=True)
        separate(inp, target.host, "allgather")
        shape = Shape("allgather", inp.dtype, inp.size, inp.size * self.size, inp.size)
        return self.two(shape, inp, target, algorithm, deadline)

    def alltoall(self, x: Any, out: Any, timeout: float | None, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        inp = reading(x, moved=True)
        check_rows(inp, self.size, "alltoall")
        target = output(out, inp.shape, inp.dtype, x, moved=True)
        separate(inp, target.host, "alltoall")
        shape = Shape("alltoall", inp.dtype, inp.size, inp.size, inp.size)
        return self.two(shape, inp, target, algorithm, deadline)

    def gather(self, x: Any, _out: Any, timeout: float | None, root: int, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        root = check_rank(root, self.size, "root")
        inp = reading(x, moved=True)
        target = fresh((self.size, *inp.shape), inp.dtype, x) if root == self.rank else None
        shape = Shape("gather", inp.dtype, inp.size, inp.size * self.size, inp.size, root=root)
        return self.two(shape, inp, target, algorithm, deadline)

    def barrier(self, x: Array, out: Array, timeout: float | None, algorithm: str) -> Call:
        """Prepares a barrier; returns an object that runs it.

        `x` and `out` have one byte each, which the messages carry: the C++ engine orders only messages that use the
        same data.
        """
        deadline = self.limit(timeout)
        prepared = self.prepare.collective(Shape("barrier", x.dtype, 1, 1, 0, "bor"), algorithm)
        return Call(prepared.operation, x, out, None, deadline.left)

    # --- the shape of the result is exchanged first

    def scatter(self, x: Any, _out: Any, timeout: float | None, root: int, algorithm: str) -> Call:
        return self._scatter("scatter", x, None, root, algorithm, timeout)

    def scatterv(self, x: Any, _out: Any, timeout: float | None, counts: Any, root: int, algorithm: str) -> Call:
        return self._scatter("scatterv", x, counts, root, algorithm, timeout)

    def _scatter(self, name: str, x: Any, counts: Any, root: int, algorithm: str, timeout: float | None) -> Call:
        deadline = self.limit(timeout)
        root = check_rank(root, self.size, "root")
        header, inp = self.scatter_header(
            name, lambda: with_rows(reading(x, moved=True), name), counts, root, algorithm, deadline
        )
        return self.scatter_data(header, name, inp, x, root, algorithm, deadline)

    def scatter_header(
        self, name: str, read: Callable[[], Any], counts: Any, root: int, algorithm: str, deadline: Deadline
    ) -> tuple[Header, Any]:
        """Returns the description of the root's array, sent to all ranks; on the root also the array, from `read`.

        `name`: "scatter" or "scatterv". If the root's arguments are invalid, the root raises ValueError or TypeError,
        and the other ranks raise Aborted.
        """
        self.prepare.admit(Shape("scatter", _BYTE, 0, 0 if name == "scatter" else (), 0, root=root), algorithm)
        inp, rows = None, np.ones(self.size, np.int64)
        if root == self.rank:
            try:
                inp = read()
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
        return header, inp

    def scatter_data(
        self, header: Header, name: str, inp: Array | None, x: Any, root: int, algorithm: str, deadline: Deadline
    ) -> Call:
        """Returns the second part of a scatter in host memory: the call in which the root sends the rows."""
        row = header.row_elements
        mine = header.rows[self.rank]
        result = header.trailing if name == "scatter" else (mine, *header.trailing)
        target = fresh(result, header.dtype, x if inp is not None else None)
        if name == "scatter":
            shape = Shape("scatter", header.dtype, row * self.size, row, row, root=root)
        else:
            shape = Shape("scatter", header.dtype, tuple(r * row for r in header.rows), mine * row, 0, root=root)
        return self.two(shape, inp, target, algorithm, deadline)

    def allgatherv(self, x: Any, _out: Any, timeout: float | None, algorithm: str) -> Call:
        return self._gather("allgather", x, 0, algorithm, timeout)

    def gatherv(self, x: Any, _out: Any, timeout: float | None, root: int, algorithm: str) -> Call:
        return self._gather("gather", x, check_rank(root, self.size, "root"), algorithm, timeout)

    def _gather(self, collective: str, x: Any, root: int, algorithm: str, timeout: float | None) -> Call:
        deadline = self.limit(timeout)
        inp = with_rows(reading(x, moved=True), f"{collective}v")
        self.prepare.admit(Shape(collective, inp.dtype, 0, (), 0, root=root), algorithm)
        rows = self.rows_of_all(inp, collective, deadline)
        row = math.prod(inp.shape[1:])
        receives = collective == "allgather" or root == self.rank
        target = fresh((sum(rows), *inp.shape[1:]), inp.dtype, x) if receives else None
        shape = Shape(collective, inp.dtype, inp.size, tuple(r * row for r in rows), 0, root=root)
        return self.two(shape, inp, target, algorithm, deadline)

    def alltoallv(self, x: Any, _out: Any, timeout: float | None, counts: Any, algorithm: str) -> Call:
        deadline = self.limit(timeout)
        inp = with_rows(reading(x, moved=True), "alltoallv")
        leaving = check_counts(counts, self.size, inp.shape[0])
        self.prepare.admit(Shape("alltoall", inp.dtype, (), (), 0), algorithm)
        rows = self.rows_for_me(inp, leaving, deadline)
        row = math.prod(inp.shape[1:])
        target = fresh((sum(rows), *inp.shape[1:]), inp.dtype, x)
        shape = Shape("alltoall", inp.dtype, tuple(int(c) * row for c in leaving), tuple(r * row for r in rows), 0)
        return self.two(shape, inp, target, algorithm, deadline)

    # --- common parts

    def two(self, shape: Shape, inp: Array | None, target: Target | None, algorithm: str, deadline: Deadline) -> Call:
        operation = self.prepare.collective(shape, algorithm).operation
        return Call(operation, inp, None if target is None else target.host, target, deadline.left)

    def _exchange(self, shape: Shape, inp: Array | None, out: Array, deadline: Deadline) -> None:
        """Run a small collective of the library, whose result is needed before the user's call can be prepared."""
        if self.outside is not None:
            self.outside()
        operation = self.prepare.collective(shape, "auto").operation
        self._group.run(operation, inp, out, deadline.left)

    def _from_root(
        self, header: npt.NDArray[np.int64], root: int, name: str, deadline: Deadline
    ) -> npt.NDArray[np.int64]:
        shape = Shape("broadcast", _INT64, 0, header.size, header.size, root=root, purpose=name)
        self._exchange(shape, None, header, deadline)
        return header

    def rows_of_all(self, inp: Described, collective: str, deadline: Deadline) -> list[int]:
        """Returns how many rows each rank passes to the v-variant of `collective`; the ranks exchange these numbers.

        Every rank raises DesyncError if the ranks' dtypes or shapes of rows differ.
        """
        mine = np.array([inp.shape[0], kind(inp)], np.int64)
        everyones = np.empty((self.size, 2), np.int64)
        self._exchange(
            Shape("allgather", _INT64, 2, 2 * self.size, 2, purpose=f"{collective}v"), mine, everyones, deadline
        )
        return self._matching(everyones, inp, f"{collective}v")

    def rows_for_me(self, inp: Described, leaving: npt.NDArray[np.int64], deadline: Deadline) -> list[int]:
        """Returns how many rows each rank sends to this rank in an alltoallv. `leaving`: how many go to each rank."""
        mine = np.stack([leaving, np.full(self.size, kind(inp), np.int64)], axis=1)
        everyones = np.empty((self.size, 2), np.int64)
        n = 2 * self.size
        self._exchange(Shape("alltoall", _INT64, n, n, n, purpose="alltoallv"), mine, everyones, deadline)
        return self._matching(everyones, inp, "alltoallv")

    def _matching(self, everyones: npt.NDArray[np.int64], inp: Described, name: str) -> list[int]:
        """The number of rows that come from each rank, read from the numbers `everyones` that ranks have exchanged.

        Every rank raises DesyncError if the ranks' dtypes or shapes of rows differ.
        """
        kinds = everyones[:, 1]
        differing = np.flatnonzero(kinds != kind(inp)).tolist()
        if differing:
            raise DesyncError(
                f"{name}: rank {self.rank} passes rows of shape {inp.shape[1:]} and dtype {inp.dtype}, "
                f"but ranks {differing} pass rows of another shape or dtype"
            )
        return [int(r) for r in everyones[:, 0]]


def one_byte() -> tuple[Array, Array]:
    """Input and output of a barrier."""
    return np.zeros(1, np.uint8), np.zeros(1, np.uint8)


def _writable(x: Array) -> Array:
    """`x`, or a copy if `x` is read-only: the engine takes only a writable buffer for a broadcast, even on the root."""
    return x if x.flags.writeable else x.copy()
