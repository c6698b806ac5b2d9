"""Turns the arguments of a reduction into an operation of the C++ engine: one method per collective.

Invariant: arguments are checked completely before anything is sent. If `op` is a name, the
C++ engine reduces. If `op` is a function, Python code calls it, see `functions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from collectives.arrays.array import (
    Array,
    Dtype,
    check_counts,
    check_rank,
    check_rows,
    output,
    reading,
    separate,
    with_rows,
)
from collectives.arrays.dtypes import FLOAT0
from collectives.calls.call import Call, Ready
from collectives.calls.functions import FunctionCalls
from collectives.calls.moves import Calls, Deadline
from collectives.calls.op import Reduction, identity_of
from collectives.calls.operands import operands
from collectives.calls.prepare import Preparer, Shape

_LOGICAL: Final = ("land", "lor", "lxor")


class ReductionCalls:
    """Checks the arguments of reductions (such as allreduce) on one communicator, and returns objects that run them."""

    def __init__(self, calls: Calls) -> None:
        self._calls: Final = calls
        self._prepare: Final[Preparer] = calls.prepare
        self._functions: Final = FunctionCalls(calls)

    @property
    def size(self) -> int:
        return self._calls.size

    def limit(self, timeout: float | None) -> Deadline:
        return self._calls.limit(timeout)

    def allreduce(
        self, x: Any, out: Any, timeout: float | None, op: Reduction, algorithm: str, purpose: str = ""
    ) -> Ready:
        if not isinstance(op, str):
            return self._functions.reduction("allreduce", x, out, timeout, op, 0, algorithm)
        return self.engine_allreduce(x, out, timeout, op, algorithm, purpose)

    def engine_allreduce(
        self, x: Any, out: Any, timeout: float | None, op: str, algorithm: str, purpose: str = "", call_bytes: int = 0
    ) -> Call:
        """An allreduce whose `op` is a name. `call_bytes`: see `Shape`."""
        return self._reduction("allreduce", x, out, timeout, op, 0, algorithm, purpose, call_bytes)

    def check_allreduce(self, dtype: Dtype, count: int, op: str, algorithm: str) -> bool:
        """Raises the TypeError or ValueError that `allreduce` raises for these arguments, if any.

        `count`: the number of elements. Returns whether the algorithm works with input and output in the same memory.
        """
        return self._prepare.check(Shape("allreduce", dtype, count, count, count, op, 0, True), algorithm)

    def reduce(self, x: Any, out: Any, timeout: float | None, op: Reduction, root: int, algorithm: str) -> Ready:
        root = check_rank(root, self.size, "root")
        if not isinstance(op, str):
            return self._functions.reduction("reduce", x, out, timeout, op, root, algorithm)
        return self._reduction("reduce", x, out, timeout, op, root, algorithm)

    def scan(self, x: Any, out: Any, timeout: float | None, op: Reduction, algorithm: str) -> Ready:
        if not isinstance(op, str):
            return self._functions.reduction("scan", x, out, timeout, op, 0, algorithm)
        return self._reduction("scan", x, out, timeout, _no_average(op, "scan"), 0, algorithm)

    def exscan(self, x: Any, out: Any, timeout: float | None, op: Reduction, algorithm: str) -> Ready:
        if not isinstance(op, str):
            return self._functions.reduction("exscan", x, out, timeout, op, 0, algorithm)
        call = self._reduction("exscan", x, out, timeout, _no_average(op, "exscan"), 0, algorithm)
        if self._calls.rank > 0 or call.target is None or call.target.host.dtype == FLOAT0:
            return call
        return call._replace(finish=_filling(identity_of(op, call.target.host.dtype)))

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
        call_bytes: int = 0,
    ) -> Call:
        deadline = self.limit(timeout)
        receives = collective != "reduce" or root == self._calls.rank
        inp, target, same = operands(x, out, receives)
        n = inp.size
        shape = Shape(collective, inp.dtype, n, n, n, op, root, same, purpose, call_bytes)
        prepared = self._prepare.collective(shape, algorithm)
        if same and target is not None:
            inp = target.host
        if not receives or target is None:
            return Call(prepared.operation, inp, None, None, deadline.left)
        terms = {"scan": self._calls.rank + 1, "exscan": self._calls.rank}.get(collective, self.size)
        copies = same and not prepared.in_place
        call = Call(prepared.operation, inp, target.host, target, deadline.left, copies=copies)
        return self._truth(call, op, terms)

    def reduce_scatter(self, x: Any, out: Any, timeout: float | None, op: Reduction, algorithm: str) -> Ready:
        if not isinstance(op, str):
            return self._functions.reduce_scatter(x, None, out, timeout, op, algorithm)
        deadline = self.limit(timeout)
        inp = reading(x)
        rows = check_rows(inp, self.size, "reduce_scatter")
        target = output(out, (rows, *inp.shape[1:]), inp.dtype, x)
        separate(inp, target.host, "reduce_scatter")
        shape = Shape("reduce_scatter", inp.dtype, inp.size, inp.size // self.size, inp.size, op)
        return self._truth(self._calls.two(shape, inp, target, algorithm, deadline), op, self.size)

    def reduce_scatterv(
        self, x: Any, out: Any, timeout: float | None, counts: Any, op: Reduction, algorithm: str
    ) -> Ready:
        if not isinstance(op, str):
            return self._functions.reduce_scatter(x, counts, out, timeout, op, algorithm)
        deadline = self.limit(timeout)
        inp = with_rows(reading(x), "reduce_scatterv")
        rows = check_counts(counts, self.size, inp.shape[0]).tolist()
        target = output(out, (rows[self._calls.rank], *inp.shape[1:]), inp.dtype, x)
        separate(inp, target.host, "reduce_scatterv")
        row = int(np.prod(inp.shape[1:], dtype=np.int64))
        parts = tuple(count * row for count in rows)
        shape = Shape("reduce_scatter", inp.dtype, parts, target.host.size, inp.size, op, purpose=f"counts {rows}")
        return self._truth(self._calls.two(shape, inp, target, algorithm, deadline), op, self.size)

    def _truth(self, call: Call, op: str, terms: int) -> Call:
        """Returns `call`, made to convert the result of a logical op to 0 or 1 if only one rank contributes to it.

        With one term, the engine copies the element, which may be any number. `terms`: how many ranks contribute.
        """
        return call if terms > 1 or op not in _LOGICAL else call._replace(finish=_to_truth)


def _to_truth(host: Array) -> None:
    host[...] = host != 0


def _filling(value: Any) -> Callable[[Array], None]:
    return lambda host: host.fill(value)


def _no_average(op: str, name: str) -> str:
    if op == "avg":
        raise ValueError(f"{name} has no avg: give 'sum', and divide by the number of ranks before this one")
    return op
