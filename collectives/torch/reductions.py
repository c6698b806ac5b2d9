"""Translates torch's reduce ops to ops of the communicator.

Invariant: every op of torch has a translation. The communicator, not this module, refuses an op that the dtype does not
allow.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from torch.distributed import ReduceOp

from collectives.arrays.array import Array, Dtype

_OPS: Final = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
    ReduceOp.PREMUL_SUM: "sum",
}


class Reduction(NamedTuple):
    """How a process group's reduction is computed: by the communicator's op `op`, then divided by `divisor`.

    `divisor` is the number of ranks for averages of integers, else 1.
    """

    op: str
    divisor: int = 1

    def finish(self, result: Array | None) -> None:
        """Divides `result`, a sum of integers, in place, and rounds the average towards zero, as other backends do."""
        if self.divisor == 1 or result is None:
            return
        quotient = result // self.divisor
        quotient += (quotient < 0) & (quotient * self.divisor != result)  # // rounds towards minus infinity
        result[...] = quotient


def name_of(op: Any) -> str:
    """The communicator's name for torch's `op`. ValueError for unknown ops."""
    name = _OPS.get(op.op)
    if name is None:
        raise ValueError(f"there is no op {op}; there are {', '.join(known.name for known in _OPS)}")
    return name


def factor_of(op: Any) -> Any:
    """The factor of PREMUL_SUM; None for other ops."""
    return op.__getstate__()[1] if op == ReduceOp.PREMUL_SUM else None


def averages_integers(op: Any, dtype: Dtype) -> bool:
    """Whether `op` is the average and `dtype` an integer type; the sum is then computed, and divided afterwards."""
    return op == ReduceOp.AVG and dtype.kind in "iu"


def reduction(op: Any, size: int, dtype: Dtype, *arrays: Array) -> Reduction:
    """Translates torch's `op` to a communicator's op, and a divisor for averages of integers on `size` ranks.

    If `op` has a factor (PREMUL_SUM), multiplies `arrays` by it, in place. Raises ValueError for unknown ops.
    """
    if op == ReduceOp.SUM:  # the most frequent op, without a look-up in the table
        return _SUM
    name = name_of(op)
    if averages_integers(op, dtype):
        return Reduction("sum", size)
    if op == ReduceOp.PREMUL_SUM:
        factor = factor_of(op)
        for array in arrays:
            np.multiply(array, array.dtype.type(factor), out=array)
    return Reduction(name)


_SUM: Final = Reduction("sum")
