"""Pinned host memory through which arrays of CUDA devices pass, in blocks that are used again.

Invariant: a block that is taken is used by no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.arrays.array import Array, Dtype
from collectives.native import _engine

Memory = Callable[[int, Dtype], Array]  # (count, dtype): host memory, if possible such as other ranks can read directly

_ROUNDED: Final = 1 << 20  # bytes: sizes of blocks are multiples of it
_MOST_KEPT: Final = 256 << 20  # bytes


class Block(NamedTuple):
    """Host memory that is pinned for a device, and the streams that copy between both."""

    memory: npt.NDArray[np.uint8]
    native: _engine.CudaStaging
    device: int


def pinned(memory: Memory, nbytes: int, device: int) -> Block:
    """A new block. TransportUnavailable if its memory cannot be pinned."""
    host = memory(nbytes, np.dtype(np.uint8))
    return Block(host, _engine.CudaStaging(host, host.size, device), device)


class PinnedMemory:
    """The free blocks of one communicator."""

    def __init__(self, memory: Memory) -> None:
        self._memory: Final = memory
        self._free: list[Block] = []

    def take(self, nbytes: int, device: int) -> Block:
        """Returns a block of at least `nbytes` bytes. `give` takes it back."""
        best = -1
        for i, (host, native, of) in enumerate(self._free):
            fits = of == device and nbytes <= host.size <= 2 * nbytes + _ROUNDED
            if fits and native.is_free and (best < 0 or host.size < self._free[best].memory.size):
                best = i
        return self._free.pop(best) if best >= 0 else pinned(self._memory, -(-nbytes // _ROUNDED) * _ROUNDED, device)

    def give(self, blocks: Iterable[Block]) -> None:
        """Takes back blocks, whose last copies may be under way; keeps the last ones."""
        self._free.extend(blocks)
        while sum(block.memory.size for block in self._free) > _MOST_KEPT:
            del self._free[0]

    def forget(self) -> None:
        """Free all blocks."""
        self._free.clear()
