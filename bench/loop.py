"""The timing loop, and the figures computed from its times.

Invariant: on each rank the clock starts after the barrier, so the times include neither the barrier nor the wait for
ranks that are still in the previous iteration. The loop does nothing else, except to write inputs again before the
barrier if asked. NumPy is the only imported package: the processes of other systems run this code, too, with a Python
of their own.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FEWEST: Final = 7  # iterations, however long they take: a median of fewer says little
MOST: Final = 2000
_FIRST: Final = 3  # iterations of the first attempt, from which their number is computed
_ENOUGH: Final = 0.1  # an attempt that took this part of the available time is long enough

Samples = npt.NDArray[np.float64]


def sample(
    call: Callable[[], Any],
    barrier: Callable[[], Any],
    iterations: int,
    renew: Callable[[], Any] | None = None,
    row: int = 1,
) -> Samples:
    """The seconds that `call` takes on this rank, one value for each iteration.

    `renew`, if given, writes the input again before each barrier. `row`: how many calls follow one another in each
    iteration; the iteration's value is the mean of their times.
    """
    many = call if row == 1 else _in_a_row(call, row)
    clock = time.perf_counter_ns
    times = np.zeros(iterations, np.int64)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for i in range(iterations):
            if renew is not None:
                renew()
            barrier()
            start = clock()
            many()
            times[i] = clock() - start
    finally:
        if collecting:
            gc.enable()
    return times / (1e9 * row)


def _in_a_row(call: Callable[[], Any], row: int) -> Callable[[], None]:
    def many() -> None:
        for _ in range(row):
            call()

    return many


def elapsed(
    call: Callable[[], Any],
    barrier: Callable[[], Any],
    iterations: int,
    renew: Callable[[], Any] | None = None,
    row: int = 1,
) -> float:
    """Seconds of all iterations together, barriers included; the arguments are those of `sample`."""
    start = time.perf_counter()
    sample(call, barrier, iterations, renew, row)
    return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Pace:
    """The length of one turn, in which one system is timed: seconds, and the fewest and most iterations."""

    seconds: float
    fewest: int
    most: int

    @staticmethod
    def of(budget: float, rounds: int) -> Pace:
        """The length of each turn (in which one system is timed) if `rounds` turns share `budget` seconds equally."""
        return Pace(budget / rounds, max(3, math.ceil(FEWEST / rounds)), max(3, MOST // rounds))

    def iterations(self, attempt: Callable[[int], float]) -> int:
        """The number of iterations that fit into a turn, in which one system is timed.

        `attempt(n)` runs n iterations and returns their seconds; the returned value must be the same on all ranks.
        """
        tried = _FIRST
        while (seconds := attempt(tried)) < _ENOUGH * self.seconds and tried < self.most // 4:
            tried *= 4
        return max(self.fewest, min(self.most, int(self.seconds * tried / max(seconds, 1e-9))))


@dataclass(frozen=True, slots=True)
class Times:
    """Statistics of a series of times, in seconds; `median` is the time that the benchmark reports first."""

    median: float
    mean: float
    min: float
    max: float
    p99: float

    @staticmethod
    def of(samples: Sequence[float] | Samples) -> Times:
        values = np.asarray(samples, np.float64)
        return Times(
            median=float(np.median(values)),
            mean=float(values.mean()),
            min=float(values.min()),
            max=float(values.max()),
            p99=float(np.percentile(values, 99)),
        )


def ratio(ours: Sequence[Samples], theirs: Sequence[Samples], rounds: Sequence[int] | None = None) -> float:
    """This library's time divided by another system's: the median of `quotients` in `rounds` (None: in all rounds).

    Both times of a round are measured within about a second, so a change of the machine's speed between rounds affects
    both.
    """
    each = quotients(ours, theirs)
    return float(np.median(each if rounds is None else [each[i] for i in rounds]))


def quotients(ours: Sequence[Samples], theirs: Sequence[Samples]) -> list[float]:
    """For each round, the median of this library's times divided by the median of the other system's."""
    return [float(np.median(a) / np.median(b)) for a, b in zip(ours, theirs, strict=True)]
