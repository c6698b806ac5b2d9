"""How the memory of an object that is no plain NumPy array is reached: one module per kind of object.

Each module has two functions. `read(x, name, moved)` gives an array with the elements that `x` stands for: over its
own memory where that holds them as they are, else a copy. `reach(x, name, moved)` gives an array over the memory
of `x` itself, to be overwritten. `name` is what messages call `x`; `moved` says that nothing is computed with the
elements, so that more dtypes will do. Both raise TypeError for what cannot be used, `reach` also ValueError.

Invariant: no module imports the library that it is about: it is there already, since its object is. What comes out
holds the very numbers that the library itself would show, and what `reach` gives is the object's own memory.
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
