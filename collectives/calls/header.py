"""The description of an array (dtype and shape), sent before the array itself if receivers do not know them.

Invariant: for a given number of ranks, a description has a fixed number of int64 values. A receiver checks each value
before using it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from collectives.arrays.dtypes import FLOAT0, Dtype, dtype_names, moved_names, name_of
from collectives.arrays.exporters.reached import Array

_MOST_AXES: Final = 64  # NumPy's own limit
_FIXED: Final = 3  # status, dtype, number of axes
_LARGEST: Final = 1 << 62


@lru_cache(maxsize=1)
def _dtypes() -> tuple[Dtype, ...]:
    """All dtypes that arrays may have. A dtype is sent as its index here, so the order is part of the wire format."""
    return (*dtype_names(), FLOAT0, *moved_names())


@dataclass(frozen=True, slots=True)
class Header:
    """A description of an array, received from another rank.

    `rows`: how many rows (items along the first axis) each rank gets. `trailing`: the shape of one row.
    """

    dtype: Dtype
    trailing: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def row_elements(self) -> int:
        return math.prod(self.trailing)


def pack(x: Array | None, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Encodes the dtype and shape of `x` as an int64 array, to be sent to other ranks.

    `rows`: how many rows of `x` each rank gets. If the arguments of this rank are invalid, `x` is None, and the encoded
    array says so.
    """
    header = np.zeros(_FIXED + _MOST_AXES + rows.size, np.int64)
    if x is not None:
        header[:_FIXED] = 1, _dtypes().index(x.dtype), x.ndim - 1
        header[_FIXED : _FIXED + x.ndim - 1] = x.shape[1:]
        header[_FIXED + _MOST_AXES :] = rows
    return header


def unpack(header: npt.NDArray[np.int64], size: int) -> Header | None:
    """Decodes the description of an array that `pack` encoded on another rank.

    Returns None if the arguments of that rank are invalid. `size`: the number of ranks. Raises ValueError for values
    that `pack` cannot have encoded.
    """
    status, dtype, axes, *rest = header.tolist()
    if status == 0:
        return None
    shape, rows = tuple(rest[:axes]), tuple(rest[_MOST_AXES:])
    if (
        status != 1
        or not 0 <= dtype < len(_dtypes())
        or not 0 <= axes < _MOST_AXES
        or len(rows) != size
        or min(*shape, *rows, 0) < 0
        or max(math.prod(shape), 1) * max(sum(rows), 1) * _dtypes()[dtype].itemsize > _LARGEST
    ):
        raise ValueError(f"not the description of an array: {header.tolist()[:8]}...")
    return Header(_dtypes()[dtype], shape, rows)


def kind(x: Array) -> int:
    """A 64-bit hash of the dtype of `x` and the shape of its rows, by which ranks notice that these differ."""
    text = f"{name_of(x.dtype)} {x.shape[1:]}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
