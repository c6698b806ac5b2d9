"""What may be passed to a collective, and how it becomes host memory that the engine can use.

Invariant: whatever is refused is refused here, with TypeError or ValueError, before anything is sent. What is
accepted comes out as a C-contiguous, aligned, native-endian array in host memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from collectives import device
from native.spelling import hint

Array: TypeAlias = "npt.NDArray[Any]"
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
_BY_NAME: dict[str, Dtype] = {name: dtype for dtype, name in NAMES.items()}
_LONGEST_WAIT = 1e9  # seconds: what the engine is given for an infinite timeout


class Target(NamedTuple):
    """Where a result goes: `host` is what the engine writes, `deliver` gives the caller's array.

    `origin` is None where that is `result`; else the result is staged: copied into `origin` (the caller's
    `out`), or into a new array of its library where `fresh`.
    """

    host: Array
    result: Any = None
    origin: Any = None
    fresh: bool = False

    def deliver(self) -> Any:
        if self.origin is None:
            return self.result
        if self.fresh:
            return device.like(self.host, self.origin, "x")
        device.fill(self.origin, self.host, "out")
        return self.origin


def dtype_of(dtype: Any) -> Dtype:
    """The dtype named or meant by `dtype`. Raises TypeError, listing those there are, for any other."""
    try:
        found = _BY_NAME[dtype] if isinstance(dtype, str) and dtype in _BY_NAME else np.dtype(dtype)
    except TypeError as error:
        raise TypeError(
            f"dtype {dtype!r} is not supported{hint(dtype, _BY_NAME)}; there are {', '.join(_BY_NAME)}"
        ) from error
    check_dtype(found, "dtype")
    return found


def check_dtype(dtype: Dtype, name: str) -> str:
    """The contract's name of `dtype`. Raises TypeError where it has none."""
    known = NAMES.get(dtype)
    if known is not None:
        return known
    if dtype.newbyteorder("=") in NAMES:
        raise TypeError(f"{name} has byte order {dtype.str!r}: give {name}.astype({dtype.newbyteorder('=').name!r})")
    raise TypeError(f"{name} has dtype {dtype}, which is not supported; there are {', '.join(_BY_NAME)}")


def reading(x: Any, name: str = "x") -> Array:
    """`x` as memory to read: its own where it can be used as it is, else a copy."""
    array = device.to_host(x, name) if device.is_device_array(x) else _view(x, name)
    check_dtype(array.dtype, name)
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned:
        return np.array(array, order="C", copy=True)
    return array


def writing(out: Any, name: str = "out") -> Target:
    """`out` as memory to write: its own, or a staging array of its shape where it lies on a device.

    Raises ValueError where it is read-only or not contiguous.
    """
    if device.is_device_array(out):
        shape, dtype = device.describe(out, name)
        check_dtype(dtype, name)
        return Target(np.empty(shape, dtype), origin=out)
    if isinstance(out, np.generic):
        raise TypeError(f"{name} is a NumPy scalar, which cannot be written: give a 0-d array, numpy.array(value)")
    array = _view(out, name)
    check_dtype(array.dtype, name)
    flags = array.flags
    if not flags.writeable:
        raise ValueError(f"{name} is read-only")
    if not flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous: results are written to C-contiguous arrays only")
    if not flags.aligned:
        raise ValueError(f"{name} is not aligned to its dtype {array.dtype}")
    return Target(array, result=out)


def updating(x: Any, name: str = "x") -> Target:
    """`x` as memory that is read and then overwritten."""
    target = writing(x, name)
    if target.origin is not None:
        target.host[...] = device.to_host(x, name)
    return target


def fresh(shape: tuple[int, ...], dtype: Dtype, x: Any) -> Target:
    """A new array for a result: on a device where `x` is on one."""
    host = np.empty(shape, dtype)
    if device.is_device_array(x):
        return Target(host, origin=x, fresh=True)
    return Target(host, result=host)


def output(out: Any, shape: tuple[int, ...], dtype: Dtype, x: Any) -> Target:
    """The given `out`, which must have `shape` and `dtype`, or a new array where it is None."""
    if out is None:
        return fresh(shape, dtype, x)
    target = writing(out)
    if target.host.shape != shape:
        raise ValueError(f"out has shape {target.host.shape}, but the result has shape {shape}")
    if target.host.dtype != dtype:
        raise ValueError(f"out has dtype {target.host.dtype}, but the result has dtype {dtype}")
    return target


def in_place(x: Array, out: Array) -> bool:
    """Whether the two are the same memory. Raises ValueError where they overlap in part."""
    if x is out:
        return True
    if not np.may_share_memory(x, out):  # exact, as both are contiguous
        return False
    if x.nbytes == out.nbytes and x.__array_interface__["data"][0] == out.__array_interface__["data"][0]:
        return True
    raise ValueError("x and out overlap in part: give separate arrays, or the same one to work in place")


def separate(x: Array, out: Array, collective: str) -> None:
    """Raises ValueError where the two share memory."""
    if np.may_share_memory(x, out):
        raise ValueError(f"x and out share memory, but {collective} does not work in place")


def check_number(value: Any, name: str) -> int:
    """`value` as a 64-bit integer. Raises TypeError, ValueError."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is {value}, which does not fit into 64 bits")
    return int(value)


def check_shape(shape: Any) -> tuple[int, ...]:
    """`shape` as NumPy takes it: an int or several. Raises TypeError, ValueError for a negative one."""
    extents = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    checked = tuple(check_number(extent, "shape") for extent in extents)
    if min(checked, default=0) < 0:
        raise ValueError(f"shape {checked} has a negative extent")
    return checked


def check_rank(value: Any, size: int, name: str) -> int:
    """`value` as the number of a rank. Raises TypeError, ValueError."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value < size:
        raise ValueError(f"{name} is {value}, but ranks of this group are 0 to {size - 1}")
    return int(value)


def check_timeout(value: Any, name: str = "timeout") -> float:
    """`value` in seconds. Raises TypeError, ValueError."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} is {value}: it must be a number of seconds from 0 up")
    return min(float(value), _LONGEST_WAIT)


def check_counts(counts: Any, size: int, rows: int) -> npt.NDArray[np.int64]:
    """How many rows go to each rank. Raises TypeError, ValueError where they are not `rows` in all."""
    array = np.asarray(counts)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"counts must be integers, not {array.dtype}")
    if array.shape != (size,):
        raise ValueError(f"counts must name one number for each of the {size} ranks, not have shape {array.shape}")
    if array.min() < 0:
        raise ValueError(f"counts must not be negative: {array.tolist()}")
    if sum(array.tolist()) != rows:
        raise ValueError(f"counts add up to {sum(array.tolist())}, but x has {rows} rows")
    return array.astype(np.int64)


def check_rows(x: Array, size: int, collective: str) -> int:
    """Rows of `x` per rank. Raises ValueError where they cannot be divided evenly."""
    if x.ndim == 0:
        raise ValueError(f"{collective} divides the first axis among ranks, but x is 0-d")
    if x.shape[0] % size:
        raise ValueError(f"{collective} divides x.shape[0] = {x.shape[0]} among {size} ranks, which leaves a rest")
    return int(x.shape[0]) // size


def with_rows(x: Array, collective: str) -> Array:
    """`x`, which must have a first axis. Raises ValueError."""
    if x.ndim == 0:
        raise ValueError(f"{collective} divides or joins along the first axis, but x is 0-d")
    return x


def _view(x: Any, name: str) -> Array:
    """`x` as a plain NumPy array over the same memory."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: give {name}.filled(value), or its data")
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if x is None or isinstance(x, str | int | float | complex | list | tuple | dict | set):
        raise TypeError(f"{name} is a {type(x).__name__}: give an array, e.g. numpy.asarray({name})")
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(x, name)
    try:
        buffer = memoryview(x)
    except TypeError:
        raise TypeError(
            f"{name} is a {type(x).__name__}, which has neither the buffer protocol nor DLPack: give a NumPy array"
        ) from None
    try:
        return np.asarray(buffer)
    except ValueError as error:
        raise TypeError(f"{name} has elements that are not supported: {error}") from error


def _from_dlpack(x: Any, name: str) -> Array:
    try:
        return np.asarray(np.from_dlpack(x))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind, number = x.__dlpack_device__()
        where = "" if int(kind) == 1 else f" (it lies on DLPack device {int(kind)}:{int(number)}, not in host memory)"
        raise TypeError(f"{name}, a {type(x).__name__}, cannot be read through DLPack{where}: {error}") from error
