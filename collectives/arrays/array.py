"""Checks the objects that users pass to a collective, and makes arrays in host memory of them, for the engine.

Invariant: invalid objects are refused here, with TypeError or ValueError, before anything is sent. Accepted objects
become C-contiguous, aligned, native-endian arrays in host memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.arrays import cuda, device, exporters

# ruff: noqa: PLC0414  # names that other modules import from here
from collectives.arrays.dtypes import Dtype as Dtype
from collectives.arrays.dtypes import check_array
from collectives.arrays.dtypes import check_dtype as check_dtype
from collectives.arrays.dtypes import dtype_names as dtype_names
from collectives.arrays.dtypes import dtype_of as dtype_of
from collectives.arrays.dtypes import name_of as name_of
from collectives.arrays.exporters.reached import Array as Array
from collectives.arrays.located import is_device_array
from collectives.arrays.mappings import address
from collectives.arrays.twin import Twin

_LONGEST_WAIT = 1e9  # seconds: passed to the engine for an infinite timeout


class Target(NamedTuple):
    """Where a call's result goes: the C++ engine writes to `host`, then `deliver` returns the caller's array.

    If `origin` is None, the caller gets `result`, which has the same memory as `host`, or to which others copy `host`.
    Otherwise `origin` is an array
    on a device. `deliver` then copies `host` into `origin`; if `fresh` is set, into a new array of the same library on
    that device. `changed`, if not None, is a function that tells the library of `result` about writes to its memory.
    """

    host: Array
    result: Any = None
    origin: Any = None
    fresh: bool = False
    changed: Callable[[], None] | None = None

    def begin(self) -> None:
        """Tells the array's library, such as PyTorch, that the array will be written. Called after all checks."""
        if self.changed is not None:
            self.changed()

    def deliver(self) -> Any:
        if self.origin is None:
            return self.result
        if self.fresh:
            return device.like(self.host, self.origin)
        device.fill(self.origin, self.host, "out")
        return self.origin


def reading(x: Any, name: str = "x", *, moved: bool = False) -> Array:
    """Returns an array in host memory with the elements of `x`: a view of `x` if possible, else a copy.

    `name`: the name of `x` in errors. `moved`: the collective only moves elements, without computing with them, so
    dtypes that cannot be reduced, such as float8, are accepted too. Raises TypeError or ValueError if `x` cannot be
    used.
    """
    if isinstance(x, Twin):
        check_array(x.array.dtype, name, moved)
        return x.reading()
    array = device.to_host(x, name, moved) if is_device_array(x) else exporters.read(x, name, moved)
    check_array(array.dtype, name, moved)
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned:
        return np.array(array, order="C", copy=True)
    return array


def writing(out: Any, name: str = "out", *, moved: bool = False) -> Target:
    """Checks `out`, and returns a `Target`, which describes where a call's result is written.

    The C++ engine writes to the memory of `out`. If `out` is on a device, the engine writes to an array in host memory,
    which is copied to `out` afterwards. `name`: the name of `out` in errors. `moved`: the collective only moves
    elements, so dtypes that cannot be reduced are accepted too. Raises TypeError for an unsupported object or dtype,
    ValueError if `out` is read-only or not contiguous.
    """
    if isinstance(out, Twin):
        check_array(out.array.dtype, name, moved)
        return _on_device(*out.writing(name, moved))
    if is_device_array(out):
        shape, dtype = device.describe(out, name, moved)
        check_array(dtype, name, moved)
        return Target(np.empty(shape, dtype), origin=out)
    array, changed = exporters.reach(out, name, moved)
    check_array(array.dtype, name, moved)
    flags = array.flags
    if not flags.writeable:
        raise ValueError(f"{name} is read-only")
    if not flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous: results are written to C-contiguous arrays only")
    if not flags.aligned:
        raise ValueError(f"{name} is not aligned to its dtype {array.dtype}")
    return Target(array, result=out, changed=changed)


def updating(x: Any, name: str = "x", *, moved: bool = False) -> Target:
    """`x` as memory that is read and then overwritten."""
    if isinstance(x, Twin):
        check_array(x.array.dtype, name, moved)
        return _on_device(*x.writing(name, moved, read=True))
    target = writing(x, name, moved=moved)
    if target.origin is not None:
        target.host[...] = device.to_host(x, name, moved)
    return target


def fresh(shape: tuple[int, ...], dtype: Dtype, x: Any) -> Target:
    """A new array for a result: on a device if `x` is on one."""
    if isinstance(x, Twin):
        return _on_device(*x.fresh(shape))
    host = np.empty(shape, dtype)
    if is_device_array(x):
        device.check_makes(x, "x")
        return Target(host, origin=x, fresh=True)
    return Target(host, result=host)


def output(out: Any, shape: tuple[int, ...], dtype: Dtype, x: Any, *, moved: bool = False) -> Target:
    """Returns a `Target`, which describes where a call's result of this shape and dtype is written.

    The result is written to `out`, or to a new array if `out` is None. The new array is on the device of `x`, if `x` is
    on one. `moved`: the collective only moves elements, so dtypes that cannot be reduced are accepted too. Raises
    ValueError if `out` has another shape or dtype.
    """
    if out is None:
        return fresh(shape, dtype, x)
    target = writing(out, moved=moved)
    if target.host.shape != shape:
        raise ValueError(f"out has shape {target.host.shape}, but the result has shape {shape}")
    if target.host.dtype != dtype:
        raise ValueError(f"out has dtype {target.host.dtype}, but the result has dtype {dtype}")
    return target


def _on_device(host: Array, array: cuda.CudaArray) -> Target:
    """A result that is copied from `host` to `array` by others."""
    return Target(host, result=array.origin, changed=partial(cuda.begin_write, array))


def in_place(x: Array, out: Array) -> bool:
    """Whether `x` and `out` are the same memory, at the same address.

    Raises ValueError if they overlap only in part, or are the same memory mapped at two addresses.
    """
    if x is out:
        return True
    if not share(x, out):
        return False
    if x.nbytes != out.nbytes or address(x) != address(out):
        raise ValueError("x and out overlap in part: give separate arrays, or the same one to work in place")
    if x.__array_interface__["data"][0] != out.__array_interface__["data"][0]:
        raise ValueError("x and out are two mappings of the same memory: give one of them as both to work in place")
    return True


def share(x: Array, out: Array) -> bool:
    """Whether `x` and `out` have a byte in common."""
    if np.may_share_memory(x, out):  # exact, as both are contiguous
        return True
    if x.base is None or out.base is None:  # an array owns its memory, which has only one address
        return False
    start, end = address(x), address(out)
    return start < end + out.nbytes and end < start + x.nbytes and x.size > 0


def separate(x: Array, out: Array, collective: str) -> None:
    """Raises ValueError if `x` and `out` share memory."""
    if share(x, out):
        raise ValueError(f"x and out share memory, but {collective} does not work in place")


def check_number(value: Any, name: str) -> int:
    """`value` as a 64-bit integer. Raises TypeError, ValueError."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is {value}, which does not fit into 64 bits")
    return int(value)


def check_shape(shape: Any) -> tuple[int, ...]:
    """Returns `shape`, an int or a sequence of ints, as a tuple.

    Raises TypeError if it is neither, and ValueError for negative ints.
    """
    extents = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    checked = tuple(check_number(extent, "shape") for extent in extents)
    if min(checked, default=0) < 0:
        raise ValueError(f"shape {checked} has a negative extent")
    return checked


def check_rank(value: Any, size: int, name: str) -> int:
    """Returns `value` as an int. Raises TypeError if it is no integer, ValueError unless 0 <= `value` < `size`.

    `name`: the name of `value` in errors.
    """
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
    """Returns `counts`, the number of rows for each of `size` ranks, as an integer array.

    Raises TypeError if they are no integers, and ValueError if they do not add up to `rows`.
    """
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
    """Returns how many rows each of `size` ranks gets if the rows of `x` are divided equally.

    Raises ValueError if `size` does not divide the number of rows. `collective`: the name to show in the error.
    """
    if x.ndim == 0:
        raise ValueError(f"{collective} divides the first axis among ranks, but x is 0-d")
    if x.shape[0] % size:
        raise ValueError(f"{collective} divides x.shape[0] = {x.shape[0]} among {size} ranks, which leaves a rest")
    return int(x.shape[0]) // size


def with_rows(x: Array, collective: str) -> Array:
    """Return `x`. Raises ValueError if it has no first axis."""
    if x.ndim == 0:
        raise ValueError(f"{collective} divides or joins along the first axis, but x is 0-d")
    return x
