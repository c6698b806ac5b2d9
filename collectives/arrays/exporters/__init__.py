"""Access to the memory of objects that are not plain NumPy arrays: one module for each kind of object.

Each module has two functions. `read(x, name, moved)` returns an array with the elements of `x`: over the memory of `x`
if possible, else a copy. `reach(x, name, moved)` returns an array over the memory of `x`, never a copy, so that the
caller can overwrite `x`. `name` is the name of `x` in error messages. `moved`: the collective only moves the elements,
so more dtypes are accepted. Both functions raise TypeError for unsupported objects; `reach` raises ValueError for
objects that cannot be written.

Invariant: no module imports the library that it supports; as an object of this library exists, the library is loaded
already. The elements are those that the library itself would show.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from collectives.arrays.exporters import buffers, jax, ndarrays, tensorflow, torch
from collectives.arrays.exporters.reached import Array, Reached


class Exporter(Protocol):
    def read(self, x: Any, name: str, moved: bool) -> Array: ...
    def reach(self, x: Any, name: str, moved: bool) -> Reached: ...


_BY_LIBRARY: dict[str, Exporter] = {
    "torch": torch,
    "tensorflow": tensorflow,
    "keras": tensorflow,
    "jax": jax,
    "jaxlib": jax,
}


def read(x: Any, name: str, moved: bool) -> Array:
    """The elements of `x`."""
    kind: Any = type(x)
    return x if kind is np.ndarray else _exporter(kind).read(x, name, moved)


def reach(x: Any, name: str, moved: bool) -> Reached:
    """The memory of `x`, which will be overwritten."""
    kind: Any = type(x)
    return Reached(x) if kind is np.ndarray else _exporter(kind).reach(x, name, moved)


@lru_cache(maxsize=256)
def _exporter(kind: Any) -> Exporter:
    if issubclass(kind, np.ndarray | np.generic):
        return ndarrays
    for base in kind.__mro__:
        found = _BY_LIBRARY.get(str(base.__module__).partition(".")[0])
        if found is not None:
            return found
    return buffers
