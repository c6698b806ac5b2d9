"""Twin: an array on a CUDA device in a call that runs on host memory, between which and the array others copy.

Invariant: nothing here copies. What is copied, and when, is known to whoever made the twin.
"""

from __future__ import annotations

from typing import Final, Protocol

from collectives.arrays import cuda
from collectives.arrays.cuda import CudaArray
from collectives.arrays.exporters.reached import Array


class Passing(Protocol):
    """Provides host memory for arrays on devices."""

    def add(self, array: CudaArray, *, read: bool, written: bool) -> Array:
        """Returns uninitialised memory of the shape and dtype of `array`. ValueError if its stream is being captured.

        `read`: the operation may read it, after it has got the content of `array`. `written`: the operation may write
        it, and what it has written is copied to `array`.
        """


class Twin:
    """`array` in a call; `passing` provides its host memory."""

    __slots__ = ("_passing", "array")

    def __init__(self, array: CudaArray, passing: Passing) -> None:
        self.array: Final = array
        self._passing: Final = passing

    def reading(self) -> Array:
        """Host memory from which the operation reads the array."""
        return self._passing.add(self.array, read=True, written=False)

    def writing(self, name: str, moved: bool, *, read: bool = False) -> tuple[Array, CudaArray]:
        """Host memory for a result, and the array to which it is copied. Raises as `arrays.cuda.writing`.

        `read`: the operation may first read the array.
        """
        array = cuda.writing(self.array.origin, name, moved=moved)
        return self._passing.add(array, read=read, written=True), array

    def fresh(self, shape: tuple[int, ...]) -> tuple[Array, CudaArray]:
        """The same for a new array of this shape, and of the dtype, device and library of this one."""
        array = cuda.fresh(self.array, shape, self.array.stream)
        return self._passing.add(array, read=False, written=True), array
