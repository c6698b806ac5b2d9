"""The description of an array (dtype and shape), sent before the array itself if receivers do not know them.

Invariant: for a given number of ranks, a description has a fixed number of int64 values. A receiver checks each value
before using it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from collectives.arrays.dtypes import FLOAT0, Dtype, dtype_names, moved_names, name_of

_MOST_AXES: Final = 64  # NumPy's own limit
_FIXED: Final = 4  # status, dtype, number of axes, library
# The libraries of arrays on a device; "": the array is in host memory.
LIBRARIES: Final = ("", "cupy", "torch", "numba", "collectives")
_LARGEST: Final = 1 << 62


@lru_cache(maxsize=1)
def _dtypes() -> tuple[Dtype, ...]:
    """All dtypes that arrays may have. A dtype is sent as its index here, so the order is part of the wire format."""
    return (*dtype_names(), FLOAT0, *moved_names())


class Described(Protocol):
    """An array, in host memory or on a device."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Dtype: ...


@dataclass(frozen=True, slots=True)
class Header:
    """A description of an array, received from another rank.

    `rows`: how many rows (items along the first axis) each rank gets. `trailing`: the shape of one row. `library`: one
    of LIBRARIES, the Python library that the array is from.
    """

    dtype: Dtype
    trailing: tuple[int, ...]
    rows: tuple[int, ...]
    library: str = ""

    @property
    def row_elements(self) -> int:
        return math.prod(self.trailing)


def pack(x: Described | None, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Encodes the dtype and shape of `x` as an int64 array, to be sent to other ranks.

    `rows`: how many rows of `x` each rank gets. If the arguments of this rank are invalid, `x` is None, and the encoded
    array says so.
    """
    header = np.zeros(_FIXED + _MOST_AXES + rows.size, np.int64)
    if x is not None:
        axes = len(x.shape) - 1
        header[:_FIXED] = 1, _dtypes().index(x.dtype), axes, LIBRARIES.index(getattr(x, "library", ""))
        header[_FIXED : _FIXED + axes] = x.shape[1:]
        header[_FIXED + _MOST_AXES :] = rows
    return header


def unpack(header: npt.NDArray[np.int64], size: int) -> Header | None:
    """Decodes the description of an array that `pack` encoded on another rank.

    Returns None if the arguments of that rank are invalid. `size`: the number of ranks. Raises ValueError for values
    that `pack` cannot have encoded.
    """
    status, dtype, axes, library, *rest = header.tolist()
    if status == 0:
        return None
    shape, rows = tuple(rest[:axes]), tuple(rest[_MOST_AXES:])
    if (
        status != 1
        or not 0 <= dtype < len(_dtypes())
        or not 0 <= axes < _MOST_AXES
        or not 0 <= library < len(LIBRARIES)
        or len(rows) != size
        or min(*shape, *rows, 0) < 0
        or max(math.prod(shape), 1) * max(sum(rows), 1) * _dtypes()[dtype].itemsize > _LARGEST
    ):
        raise ValueError(f"not the description of an array: {header.tolist()[:8]}...")
    return Header(_dtypes()[dtype], shape, rows, LIBRARIES[library])


def kind(x: Described) -> int:
    """A 64-bit hash of the dtype of `x` and the shape of its rows, by which ranks notice that these differ."""
    text = f"{name_of(x.dtype)} {x.shape[1:]}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
