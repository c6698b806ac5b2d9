"""Calls in host memory on large arrays of CUDA devices, which are copied while the call runs.

The arrays pass through pinned memory. Steps of the call's schedule wait for those bytes that they read, and bytes that
no step writes any more are copied to the device.

Invariant: how a rank copies its arrays concerns this rank alone. The operation is that of ranks whose arrays are in
host memory, so ranks need not agree on anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import cuda
from collectives.arrays.array import Array
from collectives.arrays.cuda import CudaArray, on_cuda
from collectives.arrays.twin import Twin
from collectives.calls.call import Call, Exchange, Ready
from collectives.calls.moves import Calls
from collectives.calls.pinned_memory import Block, Memory, PinnedMemory
from collectives.calls.targets import overlap
from collectives.native import _engine

# Bytes of an array, or of what is gathered. Smaller arrays are copied before and after a call.
SMALLEST: Final = 4 << 20

_GATHERS: Final = ("allgather", "gather", "allgatherv", "gatherv")


class PassingCalls:
    """Prepares one communicator's calls whose arrays are copied while they run; has the memory for that."""

    def __init__(self, calls: Calls, memory: Memory) -> None:
        self._calls: Final = calls
        self.memory: Final = PinnedMemory(memory, calls.rank)

    def prepare(self, build: Callable[..., Ready], x: Any, out: Any, args: Sequence[Any]) -> Ready | None:
        """Returns what `build(x, out, *args)` prepares, with copies while it runs; None for a call without such copies.

        Raises TypeError or ValueError as `build`, and if a stream of an array is being captured.
        """
        size = self._calls.size
        if not (on_cuda(x) or on_cuda(out)) or size == 1 or any(map(callable, args)) or _engine.why_no_cuda():
            return None
        try:
            found = [cuda.reading(one, moved=True) if on_cuda(one) else None for one in (x, out)]
        except (TypeError, ValueError):
            return None  # the array's library may be able to copy it
        arrays = [array for array in found if array is not None]
        most = max(array.nbytes for array in arrays) * (size if build.__name__ in _GATHERS else 1)
        if most < SMALLEST or any(_engine.cuda_memory(array.address)[0] != "cuda" for array in arrays):
            return None
        passing = Passing(self.memory)
        given, made = (
            one if array is None else Twin(array, passing) for one, array in zip((x, out), found, strict=True)
        )
        call = build(given, made, *args)
        assert isinstance(call, Call | Exchange)
        return call.with_transfer(passing.transfer(early=isinstance(call, Exchange) or call.finish is None))

    def close(self) -> None:
        """Release the memory that no call uses."""
        self.memory.close()


class _Array(NamedTuple):
    block: Block
    host: Array
    array: CudaArray
    read: bool
    written: bool


class Passing:
    """The arrays of one call that pass through host memory. Implements `collectives.arrays.twin.Passing`."""

    def __init__(self, memory: PinnedMemory) -> None:
        self._memory: Final = memory
        self._arrays: Final[list[_Array]] = []

    def add(self, array: CudaArray, *, read: bool, written: bool) -> Array:
        cuda.refuse_capture(array)
        if array.nbytes == 0:
            return np.empty(array.shape, array.dtype)
        block = self._memory.take(array.nbytes, array.device)
        host: Array = block.memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        self._arrays.append(_Array(block, host, array, read, written))
        return host

    def transfer(self, *, early: bool) -> PassingTransfer:
        """`early`: results are complete when the operation has written them."""
        arrays = self._arrays
        ordered = any(overlap(x.array, y.array) for x in arrays if x.read for y in arrays if y.written and y is not x)
        native = _engine.CudaTransfer(
            [
                (one.block.native, one.host, one.array.address, one.array.stream, one.read, one.written)
                for one in arrays
            ],
            ordered,
            early,
        )
        return PassingTransfer(native, self._memory, [one.block for one in arrays], [one.array for one in arrays])


class PassingTransfer(NamedTuple):
    """The copies of one run of a call. Implements `collectives.calls.call.Transfer`.

    `keeps`: the arrays, which callers may drop as soon as a call in the background has started.
    """

    native: _engine.CudaTransfer
    memory: PinnedMemory
    blocks: list[Block]
    keeps: list[CudaArray]

    def finish(self) -> None:
        self.native.finish()
        self.memory.give(self.blocks)
        self.blocks.clear()
        self.keeps.clear()
