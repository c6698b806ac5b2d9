"""Element types: those that can be reduced, those that can only be moved (sent, gathered), and JAX's empty float0.

Invariant: an array of any of these types is passed to the engine without conversion. The fingerprint by which ranks
compare their calls of a collective distinguishes all types. A send and its receive are compared less strictly: of types
that can only be moved, only the size in bytes counts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from collectives.native import _engine
from collectives.native.spelling import hint

Dtype: TypeAlias = "np.dtype[Any]"

_BUILTIN: Final[dict[Dtype, str]] = {
    np.dtype(t): np.dtype(t).name
    for t in (
        np.float16,
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
"""The dtypes that can be reduced and that NumPy itself has."""

_BY_NAME: Final[dict[str, Dtype]] = {name: dtype for dtype, name in _BUILTIN.items()}
_BFLOAT16: Final = "bfloat16"

# In the order in which ml_dtypes added them: older releases lack the last ones.
_NARROW: Final = (
    "float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz int4 uint4 int2 uint2 float8_e3m4 "
    "float8_e4m3 float8_e8m0fnu float4_e2m1fn float6_e2m3fn float6_e3m2fn int1 uint1"
)

FLOAT0: Final[Dtype] = np.dtype([("float0", np.void, 0)])
"""JAX's dtype of gradients with respect to integers, whose elements have no bytes: every collective accepts it."""

BLOCKS: Final[dict[Dtype, str]] = {
    np.dtype([("scale", np.float32), (codes, np.uint8, _engine.BLOCK_NUMBERS)]): f"{codes}_blocks"
    for codes in ("int8", "float8")
}
"""The dtypes of 256 numbers with a common scale, with the engine's names."""

_USER_DEFINED: Final = 2  # `isbuiltin` of a dtype that a package has added to NumPy, as ml_dtypes does


@lru_cache(maxsize=1)
def dtype_names() -> dict[Dtype, str]:
    """This library's name of each dtype that can be reduced."""
    import ml_dtypes  # takes longer to import than all else here, and few programs need it

    float16, *others = _BUILTIN.items()
    return dict([float16, (np.dtype(ml_dtypes.bfloat16), _BFLOAT16), *others])


@lru_cache(maxsize=1)
def moved_names() -> dict[Dtype, str]:
    """The one-byte dtypes whose arrays collectives can move but not reduce, such as float8_e5m2, with their names."""
    import ml_dtypes  # see `dtype_names`

    return {np.dtype(getattr(ml_dtypes, name)): name for name in _NARROW.split() if hasattr(ml_dtypes, name)}


def reduced_name(dtype: Dtype) -> str | None:
    """Returns this library's name of `dtype`, such as "float32"; None if elements of `dtype` cannot be reduced."""
    found = _BUILTIN.get(dtype)
    if found is None and dtype.isbuiltin == _USER_DEFINED:
        return dtype_names().get(dtype)
    return found


def moved_name(dtype: Dtype) -> str | None:
    """Returns the name of `dtype` if collectives can move but not reduce its elements; otherwise None."""
    return moved_names().get(dtype) if dtype.isbuiltin == _USER_DEFINED else None


def engine_name(dtype: Dtype) -> str | None:
    """Returns the engine's name of `dtype`: also of the blocks that wire formats consist of, which users never pass."""
    return reduced_name(dtype) or BLOCKS.get(dtype)


def dtype_of(dtype: Any) -> Dtype:
    """Returns the NumPy dtype for `dtype`, a dtype or its name. Raises TypeError if its elements cannot be reduced."""
    try:
        found = named(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    except TypeError as error:
        known = dtype_names().values()
        raise TypeError(
            f"dtype {dtype!r} is not supported{hint(dtype, known)}; there are {', '.join(known)}"
        ) from error
    check_dtype(found, "dtype")
    return found


def name_of(dtype: Dtype) -> str:
    """The name of a dtype that `check_array` accepts."""
    return reduced_name(dtype) or moved_name(dtype) or "float0"


def named(name: str) -> Dtype:
    """Returns the dtype with that name, whether it can be reduced or only moved. Raises TypeError if there is none."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    dtype_names()  # importing ml_dtypes makes its names known to NumPy, too
    return np.dtype(name)


def check_array(dtype: Dtype, name: str, moved: bool) -> None:
    """Raises TypeError if a collective does not support arrays of `dtype`.

    `moved`: the collective only moves elements, without computing with them. `name`: the array's name in errors.
    """
    if dtype in _BUILTIN or dtype == FLOAT0:
        return
    if reduced_name(dtype) is None and not (moved and moved_name(dtype) is not None):
        check_dtype(dtype, name)


def check_dtype(dtype: Dtype, name: str) -> str:
    """Returns this library's name of `dtype`, such as "float32". Raises TypeError if its elements cannot be reduced.

    `name`: the array's name in errors.
    """
    known = reduced_name(dtype)
    if known is not None:
        return known
    narrow = moved_name(dtype)
    if narrow is not None:
        wide = "float32" if narrow.startswith("float") else "uint8" if narrow.startswith("u") else "int8"
        raise TypeError(
            f"{name} has dtype {narrow}, which can be moved (broadcast, allgather, send, ...) but not reduced: "
            f"convert it to {wide} first"
        )
    if reduced_name(dtype.newbyteorder("=")) is not None:
        raise TypeError(f"{name} has byte order {dtype.str!r}: give {name}.astype({dtype.newbyteorder('=').name!r})")
    raise TypeError(f"{name} has dtype {dtype}, which is not supported; there are {', '.join(dtype_names().values())}")
