"""What each collective has to give, by NumPy, in float64 or integers.

Invariant: knows nothing of the library but the contract. Inputs of all ranks in, what one rank gets out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]
COMPLEXES = [np.dtype(t) for t in (np.complex64, np.complex128)]
SIGNED = [np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64)]
UNSIGNED = [np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64)]
BOOL = np.dtype(np.bool_)
DTYPES = [*FLOATS, *SIGNED, *UNSIGNED, BOOL, *COMPLEXES]

_BITS: dict[str, Any] = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
_LOGIC: dict[str, Any] = {"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor}
_ORDER: dict[str, Any] = {"min": np.minimum, "max": np.maximum}
_SUMS: dict[str, Any] = {"sum": np.add, "prod": np.multiply}


IDENTITIES: dict[str, Any] = {
    **dict.fromkeys(("sum", "bor", "bxor", "lor", "lxor"), lambda dtype: 0),
    **dict.fromkeys(("prod", "land"), lambda dtype: 1),
    "band": lambda dtype: True if dtype == BOOL else ~dtype.type(0),
    "min": lambda dtype: True if dtype == BOOL else np.inf if dtype in FLOATS else np.iinfo(dtype).max,
    "max": lambda dtype: False if dtype == BOOL else -np.inf if dtype in FLOATS else np.iinfo(dtype).min,
}


def ops(dtype: np.dtype[Any]) -> list[str]:
    """The ops that have a meaning for `dtype`, by the contract."""
    if dtype in COMPLEXES:
        return ["sum", "prod", "avg"]
    if dtype in FLOATS:
        return ["sum", "prod", "min", "max", "avg"]
    return ["sum", "prod", "min", "max", *_BITS, *_LOGIC, *([] if dtype == BOOL else ["avg"])]


def is_exact(dtype: np.dtype[Any]) -> bool:
    return dtype not in FLOATS and dtype not in COMPLEXES


def reduced(inputs: Sequence[Array], op: str) -> Array:
    """The reduction of one array per rank; floating ones in the widest type there is."""
    dtype = inputs[0].dtype
    stack = np.stack(inputs)
    if op in _LOGIC:
        return np.asarray(_LOGIC[op].reduce(stack != 0, axis=0)).astype(dtype)
    if op in _BITS:
        return np.asarray(_BITS[op].reduce(stack, axis=0))
    if op == "avg" and is_exact(dtype):
        return quotient(np.add.reduce(stack, axis=0, dtype=dtype), len(inputs))
    if not is_exact(dtype):
        stack = stack.astype(np.complex128 if dtype in COMPLEXES else np.float64)
    if op == "avg":
        return np.asarray(np.add.reduce(stack, axis=0) / len(inputs))
    function = {**_ORDER, **_SUMS}[op]
    with np.errstate(over="ignore"):
        return np.asarray(function.reduce(stack, axis=0, dtype=stack.dtype))


def quotient(total: Array, ranks: int) -> Array:
    """The average of integers: their sum, which wraps around, divided by `ranks` and rounded towards zero."""
    return np.asarray(total // ranks + ((total < 0) & (total % ranks != 0)))


def same(actual: Any, expected: Array, dtype: np.dtype[Any], terms: int) -> str:
    """Empty if `actual` is right, else what is wrong. `terms`: how many values each element was made of."""
    if not isinstance(actual, np.ndarray):
        return f"gave a {type(actual).__name__}, not an array"
    if actual.dtype != dtype:
        return f"has dtype {actual.dtype}, not {dtype}"
    if actual.shape != expected.shape:
        return f"has shape {actual.shape}, not {expected.shape}"
    if is_exact(dtype):
        wrong = actual != expected
    else:
        wide = actual.astype(expected.dtype)
        epsilon = 2.0**-7 if dtype == BFLOAT16 else float(np.finfo(dtype).eps)
        wrong = np.abs(wide - expected) > 2 * terms * epsilon * np.maximum(np.abs(expected), 1)
        wrong |= np.isnan(wide) != np.isnan(expected)
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
        return (
            f"{int(wrong.sum())} of {wrong.size} elements wrong; at {at} "
            f"{np.atleast_1d(actual)[at]!r}, not {np.atleast_1d(expected)[at]!r}"
        )
    return ""
