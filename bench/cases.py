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
    """Properties of a collective that the benchmark needs, such as the definition of its size.

    `reduces` tells whether the collective has an op, `rooted` whether it has a root. `parts` tells whether its size
    includes the blocks of all ranks, as for allgather; sizes are defined as in nccl-tests. `places` has the forms in
    which the collective can be called, "out-of-place" and "in-place"; the usual form comes first. `factor(ranks)` is
    the bus bandwidth divided by the algorithm bandwidth.
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
    """One measurement of the benchmark: a collective with its size, dtype, op, root and algorithm.

    `op` is "none" if the collective has no op, and `root` is -1 if it has no root. `count` is the number of elements,
    defined as in nccl-tests.

    Alternatively, a sequence of allreduces is measured, one for each gradient of the model `trace`. Then `parts` has
    the number of elements of each gradient, and `count` is the sum of these numbers. If `bucket` is not 0, consecutive
    gradients are joined in buckets of at most `bucket` bytes, with one allreduce for each bucket.
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
        """The size of the measured collective in bytes, as in nccl-tests.

        It is the size of one rank's input or output, whichever is larger.
        """
        return self.count * (self.ranks if self.kind.parts else 1) * self.itemsize

    @property
    def elements_in(self) -> int:
        """The number of elements of a rank's input array; for a scatter, of the root's input array."""
        whole = self.collective in ("reduce_scatter", "alltoall", "scatter")
        return self.count * self.ranks if whole else self.count

    @property
    def elements_out(self) -> int:
        """The number of elements of a rank's output array; for a gather or reduce, of the root's output array."""
        whole = self.collective in ("allgather", "alltoall", "gather")
        return self.count * self.ranks if whole else self.count

    def algbw(self, seconds: float) -> float:
        """Size over time, in 10^9 bytes a second."""
        return self.nbytes / seconds / 1e9 if seconds > 0 else 0.0

    def busbw(self, seconds: float) -> float:
        """The bus bandwidth, as nccl-tests defines it, in 10^9 bytes per second, if the collective takes `seconds`."""
        return self.algbw(seconds) * self.kind.factor(self.ranks)


def count_for(kind: Kind, nbytes: int, itemsize: int, ranks: int) -> int:
    """Return the largest number of elements with which the collective `kind` has at most `nbytes` bytes.

    The number and the size are defined as in nccl-tests. `itemsize` is the size of an element in bytes, `ranks` the
    number of ranks. The number of elements is at least 1; for a barrier it is 0.
    """
    if kind.name == "barrier":
        return 0
    return max(1, nbytes // (itemsize * (ranks if kind.parts else 1)))
