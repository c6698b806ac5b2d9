"""Schedules on arrays in CUDA memory: NCCL carries their messages, and kernels on the devices reduce.

Invariant: whether a schedule runs there depends only on data that all ranks have. Operands are combined in the order of
the schedule, as in host memory with `deterministic=True`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from collectives.algorithms import registry
from collectives.arrays.dtypes import Dtype, dtype_of
from collectives.calls.prepare import Preparer, Shape
from collectives.native import _engine
from collectives.schedule.algorithm import Algorithm

if TYPE_CHECKING:
    from collectives.schedule.rounds import Rounds

COLLECTIVES: Final = (
    *("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter", "alltoall", "scan"),
)
PURPOSE: Final = "on CUDA"  # ranks notice if some of them make the call in host memory
_MOST_KEPT: Final = 1024
_LOGICAL: Final = ("land", "lor", "lxor")
_BYTE: Final = np.dtype(np.uint8)


class Scheduled(NamedTuple):
    """An operation of the C++ engine, which ranks compare, and its steps as a device runs them."""

    operation: _engine.Operation
    rounds: _engine.NcclRounds


class Schedules:
    """The schedules that one communicator may run on devices."""

    def __init__(self, prepare: Preparer) -> None:
        self._prepare: Final = prepare
        self._kept: Final[dict[tuple[Shape, str], Scheduled]] = {}
        self._against: Final[dict[tuple[object, ...], str]] = {}

    def why_not(
        self, name: str, dtype: str, op: str, algorithm: str, no_nccl: str, no_compiler: str, uneven: bool = False
    ) -> str:
        """Returns why the steps of `algorithm` do not run such a call on devices, "" if they do; cached.

        `no_nccl`: why the group uses no NCCL, "" if it does. `no_compiler`: why some rank has no compiler of kernels,
        "" if all have one. `uneven`: whether the parts of ranks may have different lengths. ValueError for an unknown
        algorithm, or one that does not work for this group; TypeError or ValueError for an invalid op.
        """
        key = (name, dtype, op, algorithm, no_nccl, no_compiler, uneven, self._prepare.table.in_order)
        found = self._against.get(key)
        if found is None:
            found = self._against[key] = self._why_not(name, dtype, op, algorithm, no_nccl, no_compiler, uneven)
        return found

    def _why_not(
        self, name: str, dtype: str, op: str, algorithm: str, no_nccl: str, no_compiler: str, uneven: bool
    ) -> str:
        if name not in COLLECTIVES:
            return f"schedules of {name} do not run on devices"
        prepare = self._prepare
        if op and dtype not in _engine.DTYPES:
            return f"no kernel reduces {dtype}"
        shape = even_shape(name, 0, _BYTE, "", 0, prepare.size)
        chosen, _, _ = prepare.choose(shape._replace(inp=(), out=()) if uneven else shape, algorithm)
        if op:
            prepare.check_op(dtype_of(dtype), op)
        if name == "scan" and op in _LOGICAL:
            return f"the result of a scan by {op} on rank 0 is no copy of its input"
        if no_nccl:
            return no_nccl
        if prepare.size == 1:
            return "there is one rank only"
        if prepare.table.in_order:
            return "deterministic=True keeps calls in host memory"
        if op and no_compiler:
            return no_compiler
        operands = self.rounds(chosen).operands
        if operands > _engine.LEADER_MOST_RANKS:
            return f"it reduces {operands} operands at once, and a kernel at most {_engine.LEADER_MOST_RANKS}"
        return ""

    def knows(self, name: str, algorithm: str) -> bool:
        """Whether this group has such an algorithm, and may run it on devices."""
        known = registry.algorithms(name, self._prepare.size)
        return name in COLLECTIVES and any(algorithm == one.name for one in known)

    def rounds(self, algorithm: Algorithm, root: int = 0) -> Rounds:
        """The rounds of this rank's steps."""
        from collectives.schedule.rounds import rounds_of  # few programs need it

        prepare = self._prepare
        return rounds_of(algorithm, prepare.rank, prepare.size, root, prepare.layout)

    def get(self, shape: Shape, algorithm: str) -> Scheduled:
        """The call; cached."""
        shape = shape._replace(purpose=f"{PURPOSE} {shape.purpose}".rstrip())
        key = (shape, algorithm)
        found = self._kept.get(key)
        if found is None:
            chosen, operation = self._prepare.apart(shape, algorithm)
            found = Scheduled(operation, _engine.NcclRounds(operation, self.rounds(chosen, shape.root).steps))
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found


def even_shape(name: str, count: int, dtype: Dtype, op: str, root: int, size: int) -> Shape:
    """Returns the shape of a call in which all ranks have equal parts. `count`: the elements of x."""
    inp = 0 if name == "broadcast" else count
    out = count
    if name in ("allgather", "gather"):
        out = count * size
    if name in ("reduce_scatter", "scatter"):
        out = count // size
    return Shape(name, dtype, inp, out, out if name == "scatter" else count, op or "sum", root)
