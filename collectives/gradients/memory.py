"""Memory for results that a framework takes over without a copy.

Invariant: every array is new and begins on a cache line: a result that somebody still holds is never written again.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from collectives.arrays import Array, Dtype

LINE: Final = 64  # bytes: frameworks copy what begins elsewhere, or abort the process


def aligned(shape: tuple[int, ...], dtype: Dtype) -> Array:
    """A new, uninitialised array."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + nbytes].view(dtype).reshape(shape)
