"""Horovod's reductions (Average, Sum, ...), with the numbers that they have in Horovod.

Invariant: a reduction that this library does not have raises an error before anything is sent.
"""

from __future__ import annotations

import warnings
from enum import IntEnum
from typing import Any, Final


class ReduceOp(IntEnum):
    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average: Final = ReduceOp.AVERAGE
Sum: Final = ReduceOp.SUM
Adasum: Final = ReduceOp.ADASUM
Min: Final = ReduceOp.MIN
Max: Final = ReduceOp.MAX
Product: Final = ReduceOp.PRODUCT

_NAMES: Final = {Average: "average", Sum: "sum", Min: "min", Max: "max", Product: "prod"}


def op_name(op: Any = None, average: bool | None = None) -> str:
    """Returns this library's name of the reduction that `op`, or the older argument `average`, selects.

    Returns "average" if both arguments are None. ValueError if both are given, or if `op` is not a reduction of
    Horovod; NotImplementedError for Adasum.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        warnings.warn("the parameter `average` has been replaced by `op`", DeprecationWarning, stacklevel=3)
        op = Average if average else Sum
    if op is None:
        op = Average
    if op == Adasum:
        raise NotImplementedError(
            "op=Adasum is not there: use op=Average with the learning rate scaled by hvd.size(), or local SGD "
            "(collectives.keras.ModelAveragingCallback, collectives.torch.ModelAverager)"
        )
    name = _NAMES.get(op)
    if name is None:
        raise ValueError(f"op must be Average, Sum, Min, Max or Product, not {op!r}")
    return name


def training_op(op: Any) -> str:
    """Returns this library's name of a reduction of gradients: "average" or "sum".

    Raises ValueError for any other reduction, NotImplementedError for Adasum.
    """
    name = op_name(op)
    if name not in ("average", "sum"):
        raise ValueError(f"op is {op!r}: gradients are combined by Average or Sum")
    return name
