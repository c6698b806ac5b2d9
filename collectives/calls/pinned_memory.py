"""Pinned host memory through which arrays of CUDA devices pass, in blocks that are used again.

Invariant: a block that is taken is used by no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.arrays.array import Array, Dtype
from collectives.arrays.cuda import NoRoom
from collectives.native import _engine
from collectives.native.errors import CollectiveError

Memory = Callable[[int, Dtype], Array]  # (count, dtype): host memory, if possible such as other ranks can read directly

_ROUNDED: Final = 1 << 20  # bytes: sizes of blocks are multiples of it
_MOST_KEPT: Final = 256 << 20  # bytes


class Block(NamedTuple):
    """Host memory that is pinned for a device, and the streams that copy between both."""

    memory: npt.NDArray[np.uint8]
    native: _engine.CudaStaging
    device: int


def pinned(memory: Memory, nbytes: int, device: int, rank: int) -> Block:
    """A new block, of this rank. NoRoom if its memory cannot be pinned."""
    host = memory(nbytes, np.dtype(np.uint8))
    try:
        return Block(host, _engine.CudaStaging(host, host.size, device), device)
    except CollectiveError as error:
        raise NoRoom(f"rank {rank}: {error}") from error


class PinnedMemory:
    """The free blocks of one communicator."""

    def __init__(self, memory: Memory, rank: int) -> None:
        self._memory: Final = memory
        self._rank: Final = rank
        self._free: list[Block] = []
        self._most_kept = _MOST_KEPT

    def take(self, nbytes: int, device: int) -> Block:
        """Returns a block of at least `nbytes` bytes. `give` takes it back."""
        best = -1
        for i, (host, native, of) in enumerate(self._free):
            fits = of == device and nbytes <= host.size <= 2 * nbytes + _ROUNDED
            if fits and native.is_free and (best < 0 or host.size < self._free[best].memory.size):
                best = i
        if best >= 0:
            return self._free.pop(best)
        return pinned(self._memory, -(-nbytes // _ROUNDED) * _ROUNDED, device, self._rank)

    def give(self, blocks: Iterable[Block]) -> None:
        """Takes back blocks, whose last copies may be under way; keeps the last ones."""
        self._free.extend(blocks)
        while sum(block.memory.size for block in self._free) > self._most_kept:
            del self._free[0]

    def close(self) -> None:
        """Free all blocks, and from now on those that come back."""
        self._most_kept = 0
        self._free.clear()
