"""Reductions by a Python function of the caller: checks, choice of the algorithm, and handling of the result.

Invariant: the function runs only on the thread that called the collective.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.algorithms import registry
from collectives.arrays.array import (
    Array,
    Target,
    check_counts,
    check_rank,
    check_rows,
    output,
    reading,
    separate,
    with_rows,
)
from collectives.arrays.dtypes import check_dtype
from collectives.calls.call import Ready
from collectives.calls.moves import Calls
from collectives.calls.op import Op, Reduction, op_of
from collectives.calls.operands import operands
from collectives.calls.prepare import Preparer, Shape, bounds
from collectives.calls.stepwise import Messages, Stepwise
from collectives.calls.work import Waiter, Work
from collectives.native import _engine
from collectives.native.errors import CollectiveError
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.form import Schedule

# Algorithms by preference: `_SHORT` for arrays that are short or cannot be divided, `_LONG` for long arrays. Python can
# run them step by step, because a rank has few messages in progress.
_SHORT: Final = {
    "allreduce": ("recursive_doubling",),
    "reduce": ("binomial", "binomial_in_order"),
    "reduce_scatter": ("pairwise",),
    "scan": ("recursive_doubling", "chain"),
    "exscan": ("recursive_doubling", "chain"),
}
_LONG: Final = {"allreduce": ("ring", "halving_doubling_short")}
_LONG_FROM: Final = 256 << 10  # bytes


class FunctionCall(NamedTuple):
    """A reduction whose `op` is a Python function, with its arrays. `run` or `start` runs the reduction.

    `target`: says how the caller's array is made from the result; None if this rank gets no result. `seconds`: the time
    limit.
    """

    op: Op
    schedule: Schedule
    messages: Messages
    shaped: Callable[[Array], Array]  # reshapes a piece of the data for the function
    limits: tuple[list[int], list[int]]  # where blocks of IN and OUT begin and end, in elements
    inp: Array
    target: Target | None
    seconds: float

    @property
    def result(self) -> Any:
        return None if self.target is None else self.target.result

    def run(self, group: _engine.Group, seconds: float) -> Any:
        out = None if self.target is None else self.target.host.reshape(-1)
        if self.target is not None:
            self.target.begin()
        steps = Stepwise(group, self.schedule, self.messages, self._combine, seconds)
        try:
            steps.run(self.inp.reshape(-1), out, self.limits)
        except CollectiveError:
            raise
        except BaseException as error:
            # Other ranks must not wait for messages that are never sent.
            said = f"{type(error).__name__}{': ' if str(error) else ''}{error}"
            group.abandon("Aborted", f"op {self.op.name} ended on rank {self.schedule.rank} by {said}")
            raise
        if self.target is None:
            return None
        if self.schedule.collective == "exscan" and self.schedule.rank == 0:
            self.target.host.fill(self.op.identity)
        return self.target.deliver()

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        result = self.run(group, seconds)
        return Work(None, lambda: result, waiter, owner)

    def _combine(self, a: Array, b: Array, out: Array) -> None:
        if out.size:
            self.op.combine(self.shaped(a), self.shaped(b), self.shaped(out))


class FunctionCalls:
    """Checks the arguments of reductions whose `op` is a Python function, and returns objects that run them."""

    def __init__(self, calls: Calls) -> None:
        self._calls: Final = calls
        self._prepare: Final[Preparer] = calls.prepare

    def reduction(
        self, collective: str, x: Any, out: Any, timeout: float | None, op: Reduction, root: int, algorithm: str
    ) -> Ready:
        deadline = self._calls.limit(timeout)
        op = op_of(op)
        root = check_rank(root, self._calls.size, "root")
        receives = collective != "reduce" or root == self._calls.rank
        inp, target, same = operands(x, out, receives)
        check_dtype(inp.dtype, "x")  # float0 has no elements to pass to a function
        if collective == "exscan" and self._calls.rank == 0 and op.identity is None:
            target = None
        if not receives:
            target = None
        shape = Shape(collective, inp.dtype, inp.size, inp.size, inp.size, "", root, same)
        if same and target is not None:
            inp = target.host
        shaped = _flat if op.elementwise else lambda piece: piece.reshape(inp.shape)
        if inp.size:
            op.try_on(shaped(inp))
        return self._call(shape, op, shaped, inp, target, algorithm, deadline.left)

    def reduce_scatter(
        self, x: Any, counts: Any, out: Any, timeout: float | None, op: Reduction, algorithm: str
    ) -> Ready:
        deadline = self._calls.limit(timeout)
        op = op_of(op)
        name = "reduce_scatter" if counts is None else "reduce_scatterv"
        inp = with_rows(reading(x), name)
        size = self._calls.size
        rows = (
            [check_rows(inp, size, name)] * size
            if counts is None
            else check_counts(counts, size, inp.shape[0]).tolist()
        )
        target = output(out, (rows[self._calls.rank], *inp.shape[1:]), inp.dtype, x)
        separate(inp, target.host, name)
        row = int(np.prod(inp.shape[1:], dtype=np.int64))
        parts = tuple(count * row for count in rows)
        shape = Shape("reduce_scatter", inp.dtype, parts, target.host.size, inp.size, purpose=f"counts {rows}")
        trailing = inp.shape[1:]
        shaped = _flat if op.elementwise else lambda piece: piece.reshape(piece.size // row, *trailing)
        if inp.size:
            op.try_on(shaped(inp.reshape(-1)[: max(parts)]))
        return self._call(shape, op, shaped, inp, target, algorithm, deadline.left)

    def _call(
        self,
        shape: Shape,
        op: Op,
        shaped: Callable[[Array], Array],
        inp: Array,
        target: Target | None,
        algorithm: str,
        seconds: float,
    ) -> FunctionCall:
        chosen = self._choose(shape, op, algorithm)
        schedule = self._prepare.schedule(chosen, shape.root)
        limits = (bounds(shape.inp, schedule.grid[0]), bounds(shape.out, schedule.grid[1]))
        code = zlib.crc32(f"{chosen.name} {shape.uneven} {shape.purpose} {op.code}".encode())
        return FunctionCall(op, schedule, Messages(self._prepare, shape, code), shaped, limits, inp, target, seconds)

    def _choose(self, shape: Shape, op: Op, algorithm: str) -> Algorithm:
        """The algorithm of the given name, or the preferred one that works for this function if the name is "auto".

        Raises TypeError or ValueError for an invalid name, or an algorithm that does not work for the function.
        """
        if not isinstance(algorithm, str):
            raise TypeError(f"algorithm must be a name, not {algorithm!r}")
        long = shape.nbytes >= _LONG_FROM
        short = _SHORT[shape.collective]
        order = (*_LONG.get(shape.collective, ()), *short) if long else (*short, *_LONG.get(shape.collective, ()))
        usable = [a for a in (registry.get(shape.collective, name) for name in order) if self._fits(a, shape, op)]
        if algorithm == "auto":
            return usable[0]
        known = registry.get(shape.collective, algorithm)
        if known not in usable:
            names = ", ".join(dict.fromkeys(a.name for a in usable))
            raise ValueError(f"{shape.collective} {known.name} does not run {op}; those that do: {names}")
        return known

    def _fits(self, algorithm: Algorithm, shape: Shape, op: Op) -> bool:
        if not algorithm.sizes(self._calls.size) or (shape.in_place and not algorithm.in_place):
            return False
        if shape.uneven and not algorithm.uneven:
            return False
        whole = min(self._prepare.schedule(algorithm, shape.root).grid) == 1
        return (algorithm.in_order or op.commutative) and (op.elementwise or whole)


def _flat(piece: Array) -> Array:
    return piece.reshape(-1)
