"""Memory for the arrays of results: aligned as frameworks need it, and reused once no array refers to it.

Reuse saves time: the kernel clears each page of newly allocated memory, which takes longer than writing a result into
it. Invariant: memory is reused only when no array, and no view of an array, refers to it any more. Memory in use and
memory kept for reuse are together never more than the most that was in use at one time.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import deque
from typing import Final

import numpy as np

from collectives.arrays.array import Array, Dtype

ALIGNMENT: Final = 64  # bytes: frameworks copy arrays with a smaller one, or abort the process
_BYTE: Final = np.dtype(np.uint8)
SMALLEST: Final = 128 << 10  # bytes; the allocator keeps smaller memory by itself


class Recycler:
    """Makes arrays for results, in memory of earlier arrays to which nothing refers any more.

    Only one thread at a time may call methods; any thread may release arrays.
    """

    __slots__ = ("_back", "_free", "_kept", "_most", "_used")

    def __init__(self) -> None:
        self._back: Final[deque[Array]] = deque()  # memory of arrays that were dropped since the last call
        self._free: Final[dict[int, list[Array]]] = {}  # by number of bytes
        self._used = self._kept = self._most = 0  # bytes: in arrays now, in no array, at most in arrays so far

    def empty(self, shape: tuple[int, ...], dtype: Dtype) -> Array:
        """Returns an uninitialised NumPy array. From 128 KiB on (`SMALLEST`), its address is a multiple of 64."""
        n = math.prod(shape) * dtype.itemsize
        if n < SMALLEST:
            return np.empty(shape, dtype)
        memory = self._take(n)
        # Views of an array refer to its base, not to the array, so the base has to be watched.
        lent = (ctypes.c_char * n).from_buffer(memory.data)
        weakref.finalize(lent, self._back.append, memory).atexit = False
        array: Array = np.frombuffer(memoryview(lent), np.uint8).view(dtype).reshape(shape)
        return array

    @property
    def kept(self) -> int:
        """Bytes that no array uses, as of the last call."""
        return self._kept

    def _take(self, n: int) -> Array:
        while self._back:
            memory = self._back.popleft()
            self._free.setdefault(memory.nbytes, []).append(memory)
            self._used -= memory.nbytes
            self._kept += memory.nbytes
        self._used += n
        self._most = max(self._most, self._used)
        if self._free.get(n):
            self._kept -= n
            return self._free[n].pop()
        while self._used + self._kept > self._most:
            size, free = next(iter(self._free.items()))
            if free:
                free.pop()
                self._kept -= size
            else:
                del self._free[size]
        return aligned((n,), _BYTE)


def aligned(shape: tuple[int, ...], dtype: Dtype) -> Array:
    """Returns an uninitialised NumPy array in newly allocated memory. Its address is a multiple of 64."""
    n = math.prod(shape) * dtype.itemsize
    memory = np.empty(n + ALIGNMENT, np.uint8)
    start = -int(memory.__array_interface__["data"][0]) % ALIGNMENT
    return memory[start : start + n].view(dtype).reshape(shape)
