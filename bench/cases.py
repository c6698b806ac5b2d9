"""The cases of the benchmark: a collective, its number of elements, and the definition of its size in bytes.

Invariant: "size" and "count" mean what they mean in nccl-tests. They depend on nothing but the case, so every rank, and
every system that is compared, moves the same bytes. This module imports nothing but the standard library, because the
workers of other systems import it in another Python.

    collective                      size, in bytes of           count, in elements of  bus bandwidth / (size / time)
    allreduce                       a rank's array              a rank's array         2(n-1)/n
    reduce, broadcast               a rank's array              a rank's array         1
    scan, exscan                    a rank's array              a rank's array         1
    allgather, gather               the parts of all ranks      one part               (n-1)/n
    reduce_scatter, scatter         the parts of all ranks      one part               (n-1)/n
    alltoall                        all parts that a rank sends one part               (n-1)/n
    barrier                         nothing: 0                  nothing: 0             0

n is the number of ranks. A part is the block of elements of one rank; all parts have the same length.
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

    `reduces`: whether it has an op. `rooted`: whether it has a root. `parts`: whether its size is that of the parts of
    all ranks together. `places`: its forms, "out-of-place", "in-place" or both, with the more usual form first.
    `factor(ranks)`: its bus bandwidth divided by its algorithm bandwidth (size / time).
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
    """One line of a table of results. `op` is "none" if the collective has no op, `root` is -1 if it has no root.

    `count`, as in nccl-tests: the elements of a rank's array, or of one part if the collective has parts. A case with
    `parts` is a sequence of calls, one for each gradient of the model `trace`. Then `parts` has the number of elements
    of each gradient, and `count` is their sum. Gradients are fused into buckets of `bucket` bytes; 0: not fused.
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
        """The size of this case (a call to measure) in bytes: a rank's input or output array, whichever is larger."""
        return self.count * (self.ranks if self.kind.parts else 1) * self.itemsize

    @property
    def elements_in(self) -> int:
        """The number of elements in the array that a rank passes (in a scatter: that the root passes)."""
        whole = self.collective in ("reduce_scatter", "alltoall", "scatter")
        return self.count * self.ranks if whole else self.count

    @property
    def elements_out(self) -> int:
        """The number of elements in the array that a rank gets (in a gather or reduce: that the root gets)."""
        whole = self.collective in ("allgather", "alltoall", "gather")
        return self.count * self.ranks if whole else self.count

    def algbw(self, seconds: float) -> float:
        """Size over time, in 10^9 bytes a second."""
        return self.nbytes / seconds / 1e9 if seconds > 0 else 0.0

    def busbw(self, seconds: float) -> float:
        """The bus bandwidth of nccl-tests, in 10^9 bytes a second: `algbw` times the collective's `factor`."""
        return self.algbw(seconds) * self.kind.factor(self.ranks)


def count_for(kind: Kind, nbytes: int, itemsize: int, ranks: int) -> int:
    """The number of elements, as in nccl-tests, for a call of at most `nbytes` bytes; at least 1, for barrier 0."""
    if kind.name == "barrier":
        return 0
    return max(1, nbytes // (itemsize * (ranks if kind.parts else 1)))
