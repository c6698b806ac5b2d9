"""Element types: those that can be reduced, those that can only be moved, and the one that holds nothing.

Invariant: an array of any of them is given to the engine as it lies in memory. What ranks compare tells every one of
these types from the others; in messages between two ranks only their size counts for those that are moved.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from collectives.native.spelling import hint

Dtype: TypeAlias = "np.dtype[Any]"

NAMES: dict[Dtype, str] = {
    np.dtype(t): np.dtype(t).name
    for t in (
        np.float16,
        ml_dtypes.bfloat16,
        np.float32,
        np.float64,
        np.int8,
        np.int16,
        np.int32,
        np.int64,
        np.uint8,
        np.uint16,
        np.uint32,
        np.uint64,
        np.bool_,
        np.complex64,
        np.complex128,
    )
}
_BY_NAME: Final[dict[str, Dtype]] = {name: dtype for dtype, name in NAMES.items()}

# In the order of ml_dtypes' releases; older ones lack the last.
_NARROW: Final = (
    "float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz int4 uint4 int2 uint2 float8_e3m4 "
    "float8_e4m3 float8_e8m0fnu float4_e2m1fn float6_e2m3fn float6_e3m2fn int1 uint1"
)
MOVED: Final[dict[Dtype, str]] = {
    np.dtype(getattr(ml_dtypes, name)): name for name in _NARROW.split() if hasattr(ml_dtypes, name)
}
"""What collectives that only move data take as well: one byte an element, as NumPy has them."""

FLOAT0: Final[Dtype] = np.dtype([("float0", np.void, 0)])
"""JAX's dtype of gradients with respect to integers, whose elements have no bytes: every collective takes it."""


def dtype_of(dtype: Any) -> Dtype:
    """The dtype named or meant by `dtype`, which can be reduced. Raises TypeError, listing those there are."""
    try:
        found = _BY_NAME[dtype] if isinstance(dtype, str) and dtype in _BY_NAME else np.dtype(dtype)
    except TypeError as error:
        raise TypeError(
            f"dtype {dtype!r} is not supported{hint(dtype, _BY_NAME)}; there are {', '.join(_BY_NAME)}"
        ) from error
    check_dtype(found, "dtype")
    return found


def name_of(dtype: Dtype) -> str:
    """The name of a dtype that `check_array` accepts."""
    return NAMES.get(dtype) or MOVED.get(dtype) or "float0"


def check_array(dtype: Dtype, name: str, moved: bool) -> None:
    """TypeError where a collective cannot take arrays of `dtype`; `moved`: it computes nothing with elements.

    `name` is what messages call the array.
    """
    if dtype not in NAMES and dtype != FLOAT0 and not (moved and dtype in MOVED):
        check_dtype(dtype, name)


def check_dtype(dtype: Dtype, name: str) -> str:
    """The contract's name of `dtype`. Raises TypeError where it has none, or cannot be reduced."""
    known = NAMES.get(dtype)
    if known is not None:
        return known
    narrow = MOVED.get(dtype)
    if narrow is not None:
        wide = "float32" if narrow.startswith("float") else "uint8" if narrow.startswith("u") else "int8"
        raise TypeError(
            f"{name} has dtype {narrow}, which can be moved (broadcast, allgather, send, ...) but not reduced: "
            f"convert it to {wide} first"
        )
    if dtype.newbyteorder("=") in NAMES:
        raise TypeError(f"{name} has byte order {dtype.str!r}: give {name}.astype({dtype.newbyteorder('=').name!r})")
    raise TypeError(f"{name} has dtype {dtype}, which is not supported; there are {', '.join(_BY_NAME)}")
