"""Measures the time of collective calls that are to be compared; each call takes its turn in every round.

Invariant: results are the same on every rank. The time of a call is the time on its slowest rank, without the barrier
before the call. Calls take turns, so that a change of the machine's speed affects all of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collectives.calibration.calls import Call
    from collectives.core.communicator import Communicator

Times: TypeAlias = "npt.NDArray[np.float64]"


class Stopwatch:
    """Measures how long calls on one communicator take: for each call, the longest time of any rank.

    `spent`: seconds from the construction of this object to the end of the last measurement. `pause`: mean seconds
    between two timed calls in the last measurement, including the barrier.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._start = time.perf_counter()
        self.spent = self.pause = 0.0

    def turns(self, calls: Sequence[Call], iterations: Sequence[int], rounds: int, renew: Call | None = None) -> Times:
        """Times each of `calls` repeatedly; returns the median seconds by round and call, with shape (rounds, calls).

        In each round, one call after the other is repeated as often as its item of `iterations` says. Before these
        repetitions, the call is made once without timing, because the previous call has filled the caches with other
        data. There is a barrier before each timed call. `renew`, if given, is called before this barrier, and writes
        the input again.
        """
        most = max(iterations)
        times = np.full((rounds, len(calls), most), -1.0)
        barrier, clock = self._comm.barrier, time.perf_counter
        collecting = gc.isenabled()
        gc.disable()
        try:
            for turn in range(rounds):
                for number, (call, count) in enumerate(zip(calls, iterations, strict=True)):
                    call()
                    row = times[turn, number]
                    for i in range(count):
                        if renew is not None:
                            renew()
                        barrier()
                        start = clock()
                        call()
                        row[i] = clock() - start
        finally:
            if collecting:
                gc.enable()
        before = self.spent
        slowest = self._agree(times)
        timed = float(slowest[slowest > 0].sum())
        self.pause = max(0.0, self.spent - before - timed) / (rounds * sum(iterations))
        medians = [
            [float(np.median(slowest[turn, number, :count])) for number, count in enumerate(iterations)]
            for turn in range(rounds)
        ]
        found: Times = np.maximum(np.array(medians), 1e-9)
        return found

    def fitting(self, expected: Sequence[float], budget: float, rounds: int, bounds: tuple[int, int]) -> list[int]:
        """Returns how often to repeat each call in a round of a measurement that is to take `budget` seconds in all.

        All calls get the same time. `expected`: the expected seconds of each call. `rounds`: the number of rounds.
        `bounds`: the fewest and the most repetitions.
        """
        fewest, most = bounds
        share = budget / max(1, len(expected)) / rounds
        return [int(min(most, max(fewest, share / (seconds + self.pause + 1e-6)))) for seconds in expected]

    def share(self, values: Sequence[float]) -> list[float]:
        """The largest value over all ranks, for each position."""
        found: list[float] = self._agree(np.array(values, np.float64)).tolist()
        return found

    def _agree(self, values: Times) -> Times:
        mine = np.append(values.reshape(-1), time.perf_counter() - self._start)
        all_of_them = self._comm.allreduce(mine, "max")
        self.spent = float(all_of_them[-1])
        agreed: Times = all_of_them[:-1].reshape(values.shape)
        return agreed
