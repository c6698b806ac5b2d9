"""The cases of the benchmark: a collective, its elements, and the definition of its bytes.

Invariant: "size" and "count" mean what they mean in nccl-tests, and depend on nothing but the case, so every rank,
and every system that is compared, moves the same bytes. Imports nothing but the standard library: the workers of
peers use it with a Python of their own.

    collective                        size                     count               bus bandwidth / (size / time)
    allreduce                         a rank's array           elements of it      2(n-1)/n
    reduce, broadcast                 a rank's array           elements of it      1
    allgather, gather                 all parts together       elements of a part  (n-1)/n
    reduce_scatter, scatter           all parts together       elements of a part  (n-1)/n
    alltoall                          what a rank sends        elements of a part  (n-1)/n
    barrier                           0                        0                   0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

OUT_OF_PLACE: Final = "out-of-place"
IN_PLACE: Final = "in-place"


@dataclass(frozen=True, slots=True)
class Kind:
    """A collective in the benchmark.

    `parts`: whether the size counts the parts of all ranks together. `places`: "out-of-place" and "in-place", as far as
    the collective has these forms, the more frequent form first. `factor(ranks)`: bus bandwidth over algorithm
    bandwidth.
    """

    name: str
    reduces: bool
    rooted: bool
    parts: bool
    places: tuple[str, ...]
    factor: Callable[[int], float]


def _all_but_mine(ranks: int) -> float:
    return (ranks - 1) / ranks


def _once(_ranks: int) -> float:
    return 1.0


_BOTH, _OUT, _IN = (OUT_OF_PLACE, IN_PLACE), (OUT_OF_PLACE,), (IN_PLACE,)
_KINDS: Final = (
    Kind("allreduce", True, False, False, _BOTH, lambda n: 2 * (n - 1) / n),
    Kind("reduce_scatter", True, False, True, _OUT, _all_but_mine),
    Kind("allgather", False, False, True, _OUT, _all_but_mine),
    Kind("broadcast", False, True, False, _IN, _once),
    Kind("reduce", True, True, False, _BOTH, _once),
    Kind("alltoall", False, False, True, _OUT, _all_but_mine),
    Kind("gather", False, True, True, _OUT, _all_but_mine),
    Kind("scatter", False, True, True, _OUT, _all_but_mine),
    Kind("scan", True, False, False, _BOTH, _once),
    Kind("exscan", True, False, False, _BOTH, _once),
    Kind("barrier", False, False, False, _OUT, lambda _n: 0.0),
)
KINDS: Final = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table. `op` is "none" and `root` -1 if the collective has none.

    `count` as in nccl-tests: elements of a rank's array, or of one part if ranks have parts. A case with `parts` is a
    sequence of calls, one for each gradient of the model `trace`: `parts` has the numbers of elements, `count` in all.
    The gradients are fused into buckets of `bucket` bytes, unless that is 0.
    """

    collective: str
    dtype: str
    itemsize: int
    op: str
    root: int
    algorithm: str
    ranks: int
    count: int
    trace: str = ""
    parts: tuple[int, ...] = ()
    bucket: int = 0

    @property
    def title(self) -> str:
        """The title of the table in which this case is a line."""
        return f"{self.collective} of the gradients of {self.trace}" if self.trace else self.collective

    @property
    def kind(self) -> Kind:
        return KINDS[self.collective]

    @property
    def nbytes(self) -> int:
        """The size: bytes of the larger of a rank's two arrays, input and output."""
        return self.count * (self.ranks if self.kind.parts else 1) * self.itemsize

    @property
    def elements_in(self) -> int:
        """Elements of the array that a rank (a scatter's root) passes."""
        whole = self.collective in ("reduce_scatter", "alltoall", "scatter")
        return self.count * self.ranks if whole else self.count

    @property
    def elements_out(self) -> int:
        """Elements of the array that a rank (a gather's or reduce's root) gets."""
        whole = self.collective in ("allgather", "alltoall", "gather")
        return self.count * self.ranks if whole else self.count

    def algbw(self, seconds: float) -> float:
        """Size over time, in 10^9 bytes a second."""
        return self.nbytes / seconds / 1e9 if seconds > 0 else 0.0

    def busbw(self, seconds: float) -> float:
        """`algbw` scaled to the load of a link, so that runs with different numbers of ranks can be compared."""
        return self.algbw(seconds) * self.kind.factor(self.ranks)


def count_for(kind: Kind, nbytes: int, itemsize: int, ranks: int) -> int:
    """The count for about `nbytes`: rounded down to whole elements in equal parts, but at least one."""
    if kind.name == "barrier":
        return 0
    return max(1, nbytes // (itemsize * (ranks if kind.parts else 1)))
