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
    settle: Callable[[], Any] | None = None,
) -> Samples:
    """Time `call` on this rank; return the seconds of each iteration as a float64 array of length `iterations`.

    Before each iteration, `barrier` is called, outside the timed part. Before the barrier, `renew` is called, if not
    None, to write the input data again. An iteration makes `row` calls, and its value is their mean time. `settle`, if
    not None, waits at the end of the timed part until the calls are complete.
    """
    many = call if row == 1 and settle is None else _in_a_row(call, row, settle)
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


def _in_a_row(call: Callable[[], Any], row: int, settle: Callable[[], Any] | None) -> Callable[[], None]:
    def many() -> None:
        for _ in range(row):
            call()
        if settle is not None:
            settle()

    return many


def elapsed(
    call: Callable[[], Any],
    barrier: Callable[[], Any],
    iterations: int,
    renew: Callable[[], Any] | None = None,
    row: int = 1,
    settle: Callable[[], Any] | None = None,
) -> float:
    """Run the timing loop of the function `sample`, with the same arguments, and return how many seconds it takes.

    The time includes the barriers.
    """
    start = time.perf_counter()
    sample(call, barrier, iterations, renew, row, settle)
    return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Pace:
    """The length of a turn, in which one library is timed: about `seconds`, with `fewest` to `most` iterations.

    The benchmark times several libraries in alternation. A turn is one uninterrupted measurement of one library.
    """

    seconds: float
    fewest: int
    most: int

    @staticmethod
    def of(budget: float, rounds: int) -> Pace:
        """Return the length of a turn if `rounds` turns together may take `budget` seconds.

        A turn is one uninterrupted measurement of one library, before the benchmark times the next one.
        """
        return Pace(budget / rounds, max(3, math.ceil(FEWEST / rounds)), max(3, MOST // rounds))

    def iterations(self, attempt: Callable[[int], float]) -> int:
        """Return how many iterations fit into one turn, the time in which one library is measured without interruption.

        `attempt(n)` runs n iterations and returns the seconds that they took. It must return the same value on all
        ranks.
        """
        tried = _FIRST
        while (seconds := attempt(tried)) < _ENOUGH * self.seconds and tried < self.most // 4:
            tried *= 4
        return max(self.fewest, min(self.most, int(self.seconds * tried / max(seconds, 1e-9))))


@dataclass(frozen=True, slots=True)
class Times:
    """Statistics of a series of times, all in seconds. `p99` is the 99th percentile."""

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
    """Return this library's time divided by another library's: the median of the ratios of the rounds `rounds`.

    `ours` and `theirs` have the times of both libraries, an array for each round of measurement. If `rounds` is None,
    all rounds count. In a round, both libraries are timed within about a second. So both times change alike if the
    machine becomes slower between rounds.
    """
    each = quotients(ours, theirs)
    return float(np.median(each if rounds is None else [each[i] for i in rounds]))


def quotients(ours: Sequence[Samples], theirs: Sequence[Samples]) -> list[float]:
    """Return, for each round of measurement, this library's median time divided by the other library's median time."""
    return [float(np.median(a) / np.median(b)) for a, b in zip(ours, theirs, strict=True)]
