"""Torch's reduce ops by the names that they have here.

Invariant: every op of torch's is in the table; dtypes that it does not make sense for are the communicator's affair.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from torch.distributed import ReduceOp

from collectives.arrays import Array

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


def factor_of(op: Any) -> Any:
    """By which PREMUL_SUM multiplies; None for other ops."""
    return op.__getstate__()[1] if op == ReduceOp.PREMUL_SUM else None


def reduction(opts: Any, *arrays: Array) -> str:
    """Our name of the op, the arrays being multiplied first where it says so."""
    op = opts.reduceOp
    if op == ReduceOp.SUM:  # sooner than the table tells, and nearly always
        return "sum"
    name = _OPS.get(op.op)
    if name is None:
        raise ValueError(f"there is no op {op}; there are {', '.join(known.name for known in _OPS)}")
    if op == ReduceOp.PREMUL_SUM:
        factor = factor_of(op)
        for array in arrays:
            np.multiply(array, array.dtype.type(factor), out=array)
    return name
