"""Translates torch's reduce ops to ops of the communicator.

Invariant: every op of torch has a translation. The communicator, not this module, refuses an op that the dtype does not
allow.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from torch.distributed import ReduceOp

from collectives.arrays.array import Array

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


def name_of(op: Any) -> str:
    """The communicator's name for torch's `op`. ValueError for unknown ops."""
    name = _OPS.get(op.op)
    if name is None:
        raise ValueError(f"there is no op {op}; there are {', '.join(known.name for known in _OPS)}")
    return name


def factor_of(op: Any) -> Any:
    """The factor of PREMUL_SUM; None for other ops."""
    return op.__getstate__()[1] if op == ReduceOp.PREMUL_SUM else None


def reduction(op: Any, *arrays: Array) -> str:
    """The communicator's name for torch's `op`; if `op` has a factor (PREMUL_SUM), multiplies `arrays` by it, in place.

    ValueError for unknown ops.
    """
    if op == ReduceOp.SUM:  # the most frequent op, without a look-up in the table
        return "sum"
    name = name_of(op)
    factor = factor_of(op)
    if factor is not None:
        for array in arrays:
            np.multiply(array, array.dtype.type(factor), out=array)
    return name
