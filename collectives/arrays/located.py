"""Whether an array is in the memory of a CUDA device, and which library has made it.

Invariant: nothing here imports a library, or copies anything; as the array exists, its library is loaded already.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from collectives.arrays import dlpack

# The libraries whose arrays may be on a device; other packages derive types from theirs.
_KNOWN: Final = frozenset(("cupy", "torch", "numba", "jax", "jaxlib", "tensorflow"))
_JAX: Final = ("jax", "jaxlib")
_MOST_KEPT: Final = 256  # types, which programs may make while they run
_libraries: Final[dict[type[Any], str]] = {}


def is_device_array(x: object) -> bool:
    """Whether `x` is in CUDA memory (CuPy, Numba, torch on a GPU, JAX)."""
    if type(x) is np.ndarray:
        return False
    try:
        if hasattr(x, "__cuda_array_interface__"):
            return True
    # torch, for a tensor on a GPU that requires a gradient, or whose dtype has no name in the interface, such as
    # float8_e4m3fn; JAX, for a deleted array.
    except (RuntimeError, KeyError):
        return bool(getattr(x, "is_cuda", False))
    # Some dtypes have no name in the interface; JAX then has no such attribute.
    return library_of(type(x)) in _JAX and dlpack.is_cuda(x)


def library_of(kind: type[Any]) -> str:
    """Returns the name of the library of the type `kind`; of a type that derives from a library's array, this library.

    For other types, it is the name of the type's own package.
    """
    found = _libraries.get(kind)
    if found is not None:
        return found
    names = [str(one.__module__).partition(".")[0] for one in kind.__mro__]
    if len(_libraries) >= _MOST_KEPT:
        _libraries.clear()
    found = _libraries[kind] = next((name for name in names if name in _KNOWN), names[0])
    return found
