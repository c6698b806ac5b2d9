"""The timing loop, and the figures computed from its times.

Invariant: the clock starts after the barrier on each rank, so neither the barrier nor waiting for the slowest rank's
previous iteration is measured; nothing else happens inside the loop. Imports nothing but NumPy: the workers of other
systems run this code, too, with a Python of their own.
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
    """Seconds of the call on this rank, in each iteration.

    `renew` writes the input again, before the barrier. `row`: the calls in a row in each iteration; their mean counts.
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
    """The duration of one turn, and its smallest and largest number of iterations."""

    seconds: float
    fewest: int
    most: int

    @staticmethod
    def of(budget: float, rounds: int) -> Pace:
        """The pace of one of `rounds` turns that share `budget` seconds."""
        return Pace(budget / rounds, max(3, math.ceil(FEWEST / rounds)), max(3, MOST // rounds))

    def iterations(self, attempt: Callable[[int], float]) -> int:
        """The number of iterations that fit into a turn.

        `attempt(n)` returns the seconds of n iterations, the same number on all ranks.
        """
        tried = _FIRST
        while (seconds := attempt(tried)) < _ENOUGH * self.seconds and tried < self.most // 4:
            tried *= 4
        return max(self.fewest, min(self.most, int(self.seconds * tried / max(seconds, 1e-9))))


@dataclass(frozen=True, slots=True)
class Times:
    """Statistics of a series of times, in seconds; `median` is the main one."""

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
    """Our time over theirs: the median of the quotients of `rounds` (None: all rounds).

    The two times of a quotient were measured within a second or so, so a machine that changes its speed between rounds
    changes both.
    """
    each = quotients(ours, theirs)
    return float(np.median(each if rounds is None else [each[i] for i in rounds]))


def quotients(ours: Sequence[Samples], theirs: Sequence[Samples]) -> list[float]:
    """For each round, the median of our times over the median of theirs."""
    return [float(np.median(a) / np.median(b)) for a, b in zip(ours, theirs, strict=True)]
