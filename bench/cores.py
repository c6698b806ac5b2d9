"""Compares the library with MPI libraries on machines with many cores, and looks for launches that stay slow.

Invariant: a ratio compares times of one launch, measured in turns. Launches are compared at the same size, and with the
same binding of ranks to cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from collectives.bench.bars import BANDS, Line
from collectives.bench.cases import IN_PLACE
from collectives.bench.plan import Plan
from collectives.bench.standing import Size, cells

AGAINST: Final = ("openmpi", "impi")
SLOWEST: Final = 2.0  # largest accepted ratio of a launch's time to the fastest launch's time
LAUNCH_SIZES: Final = (8, 16 << 10, 1 << 20)
LAUNCH_BUDGET: Final = 0.1  # seconds for each size


@dataclass(frozen=True, slots=True)
class Target:
    """The largest accepted ratios of this library's time to that of the fastest MPI library.

    `worst` is for every size from `first` bytes on, `median` for the median of all these sizes; None: no target.
    """

    first: int
    worst: float
    median: float | None


TARGETS: Final = {
    "plain": Target(first=8, worst=1.05, median=0.75),
    "shared": Target(first=16 << 10, worst=0.5, median=None),
}


def lines(ranks: Sequence[int]) -> tuple[Line, ...]:
    """The comparisons to make: allreduce of ordinary arrays and of arrays from `comm.empty`, for each of `ranks`."""
    return tuple(
        Line("shm", buffers, n, "allreduce", AGAINST, (target.worst,) * len(BANDS))
        for n in ranks
        for buffers, target in TARGETS.items()
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of this library with MPI libraries for one number of ranks and one kind of arrays.

    `buffers` is "plain" for NumPy arrays, "shared" for arrays from `comm.empty`. `sizes` has the ratio at each message
    size that could be measured; only those that `target` covers count.
    """

    ranks: int
    buffers: str
    sizes: tuple[Size, ...]

    @property
    def target(self) -> Target:
        return TARGETS[self.buffers]

    @property
    def counting(self) -> list[Size]:
        return [size for size in self.sizes if size.nbytes >= self.target.first]

    @property
    def worst(self) -> Size | None:
        return max(self.counting, key=lambda size: size.ratio, default=None)

    @property
    def median(self) -> float | None:
        return median(size.ratio for size in self.counting) if self.counting else None

    @property
    def passed(self) -> bool | None:
        """Whether the targets are met; None if nothing could be compared."""
        worst, middle = self.worst, self.median
        if worst is None or middle is None:
            return None
        return worst.ratio <= self.target.worst and (self.target.median is None or middle <= self.target.median)


def comparison(line: Line, documents: Sequence[dict[str, Any]]) -> Comparison:
    """Compare this library with MPI libraries, by the JSON documents that the benchmark has written for `line`."""
    found = tuple(size for cell in cells(line, documents) for size in cell.sizes)
    return Comparison(line.ranks, line.buffers, found)


@dataclass(frozen=True, slots=True)
class Spread:
    """The times of one call in many launches of all ranks.

    `bound` tells whether each rank was bound to cores of its own. `medians` has the median time of allreduce in each
    launch, in seconds, for arrays of `nbytes` bytes.
    """

    bound: bool
    nbytes: int
    medians: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The time of the slowest launch divided by that of the fastest launch."""
        return max(self.medians) / min(self.medians)

    @property
    def passed(self) -> bool:
        return self.ratio <= SLOWEST


def spreads(
    run: Callable[[Plan, bool], dict[str, Any] | None], launches: int, bindings: Sequence[bool]
) -> tuple[list[Spread], int]:
    """Launch all ranks `launches` times with each of `bindings`, alternately, and compare the times of the launches.

    `run(plan, bound)` runs the benchmark once; it returns the JSON document, or None if the run failed. Return the
    comparison for each binding and size, and how many runs failed.
    """
    plan = Plan(
        collectives=("allreduce",), sizes=LAUNCH_SIZES, places=(IN_PLACE,), transport="shm", budget=LAUNCH_BUDGET
    )
    medians: dict[tuple[bool, int], list[float]] = {}
    failed = 0
    for _ in range(launches):
        for bound in bindings:
            document = run(plan, bound)
            if document is None:
                failed += 1
                continue
            for result in document["results"]:
                seconds = result["measurements"][IN_PLACE]["seconds"]["median"]
                medians.setdefault((bound, result["bytes"]), []).append(seconds)
    return [Spread(bound, nbytes, tuple(found)) for (bound, nbytes), found in sorted(medians.items())], failed
