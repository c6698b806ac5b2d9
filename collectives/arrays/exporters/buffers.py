"""Access to objects that support DLPack or the buffer protocol; errors with advice for all other objects.

Invariant: an array that NumPy makes from DLPack is returned only if it uses the memory of the object. If DLPack
exports a null pointer, NumPy allocates uninitialised memory instead, so the object is refused.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from collectives.arrays.exporters.ndarrays import check_meaning
from collectives.arrays.exporters.reached import Array, Reached, kind_of, plain


def read(x: Any, name: str, moved: bool) -> Array:
    if x is None or isinstance(x, str | int | float | complex | list | tuple | dict | set):
        raise TypeError(f"{name} is a {type(x).__name__}: give an array, e.g. numpy.asarray({name})")
    if hasattr(x, "__dlpack__"):
        check_meaning(x, name)
        return _from_dlpack(x, name)
    try:
        buffer = memoryview(x)
    except TypeError:
        raise TypeError(_neither(x, name)) from None
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(x, arrow.Buffer):  # bytes, which pyarrow declares as signed
        return np.frombuffer(buffer.cast("B"), np.uint8)
    try:
        return plain(buffer)
    except ValueError as error:
        raise TypeError(f"{name} has elements that are not supported: {error}") from error


def reach(x: Any, name: str, moved: bool) -> Reached:
    array = read(x, name, moved)
    if hasattr(x, "__dlpack__") and array.size and array.flags.writeable:
        again = _from_dlpack(x, name)  # a second copy would be at another address than the first, which still exists
        if again.__array_interface__["data"][0] != array.__array_interface__["data"][0]:
            raise TypeError(
                f"{name}, of type {kind_of(x)}, exports copies of its elements, so it cannot be written: "
                f"give numpy.array({name})"
            )
    return Reached(array)


def _from_dlpack(x: Any, name: str) -> Array:
    try:
        array = plain(np.from_dlpack(x))
    except Exception as error:  # exporters may raise any error
        raise TypeError(f"{name}, of type {kind_of(x)}, cannot be read through DLPack{_where(x)}: {error}") from error
    if array.size and array.flags.owndata:
        raise TypeError(f"{name}, of type {kind_of(x)}, has no memory of its own: DLPack gives a null pointer for it")
    return array


def _where(x: Any) -> str:
    try:
        kind, number = map(int, x.__dlpack_device__())
    except Exception:
        return ""
    return "" if kind == 1 else f" (it lies on DLPack device {kind}:{number}, not in host memory)"


def _neither(x: Any, name: str) -> str:
    what = f"{name} is of type {kind_of(x)}, which has neither the buffer protocol nor DLPack: give"
    if hasattr(x, "toarray"):
        return f"{what} {name}.toarray(), or its data and indices each for itself"
    return f"{what} a NumPy array, e.g. numpy.asarray({name})"
