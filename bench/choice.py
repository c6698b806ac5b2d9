"""Measures the automatically chosen algorithm against the fastest one: the code of a rank, and its launcher.

Invariant: automatic choice and single algorithms take turns in one run, and are compared round by round. Algorithms
that are far slower are left out. Before each timed call, every rank writes its input again and passes a barrier. The
time of the call is that of the slowest rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Final

import numpy as np

import collectives
from collectives.bench.order import Order
from collectives.bench.start import answer, answering
from collectives.calibration.calls import Arrays
from collectives.calibration.run import candidates
from collectives.calibration.timing import Stopwatch
from collectives.schedule.select import select

BAR: Final = 1.15  # times the best algorithm's time: the automatic choice may take that long
AUTO: Final = "auto"
ROUNDS: Final = 7
_LOOKS: Final = (5, 2)  # iterations and rounds of a first, short measurement
_FAR: Final = 2.0  # algorithms that are slower than the choice by this factor at first are not measured again
_BOUNDS: Final = (3, 200)  # iterations in a round


@dataclass(frozen=True, slots=True)
class AlgorithmTimes:
    """The times of one collective at one size, with `algorithm="auto"` and with each algorithm that can be named.

    `chosen` is the algorithm that "auto" selects. `seconds` maps "auto" and each algorithm's name to the times of one
    call, one time for each round of measurement. If an algorithm was far slower than others, it was left out of some
    rounds. Then its time in these rounds is None.
    """

    collective: str
    ranks: int
    nbytes: int
    chosen: str
    seconds: Mapping[str, Sequence[float | None]]

    @property
    def best(self) -> str:
        """The name of the fastest algorithm for a collective and size.

        It is "auto" if no algorithm was faster than `algorithm="auto"`.
        """
        behind = self._behind()
        return max(behind, key=behind.__getitem__) if max(behind.values(), default=0.0) > 1 else AUTO

    @property
    def ratio(self) -> float:
        """The time with `algorithm="auto"` divided by the time of the fastest algorithm; at least 1.

        It is the median of the ratios of all rounds of measurement.
        """
        return max([1.0, *self._behind().values()])

    def _behind(self) -> dict[str, float]:
        mine = self.seconds[AUTO]
        return {
            name: median(a / b for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None)
            for name, theirs in self.seconds.items()
            if name != AUTO
        }

    def median(self, name: str) -> float:
        """The median time of one call with the algorithm `name`, in seconds.

        Rounds of measurement that left out the algorithm do not count.
        """
        return median(seconds for seconds in self.seconds[name] if seconds is not None)


def measure(order: Order, ranks: int, launches: int) -> list[AlgorithmTimes]:
    """Measure the collectives and sizes in `order` with every algorithm that can run them.

    Return one result for each collective and size. The processes of all `ranks` ranks are started `launches` times.
    `order.budget` is the time for each size in seconds, all launches together. Raises: StartError or OSError if a
    process cannot be started; RuntimeError if a rank failed.
    """
    each = asdict(replace(order, budget=order.budget / launches))
    answers = [answer("collectives.bench.choice", each, ranks) for _ in range(launches)]
    reported = [[AlgorithmTimes(**one) for one in found] for found in answers]
    return [together(results) for results in zip(*reported, strict=True)]


def together(results: Sequence[AlgorithmTimes]) -> AlgorithmTimes:
    """Combine `results`, the results that several launches of the processes gave for one collective and size.

    Return one result that has the rounds of all launches, one after the other.
    """
    names = dict.fromkeys(name for result in results for name in result.seconds)
    seconds = {n: [s for one in results for s in one.seconds.get(n, [None] * len(one.seconds[AUTO]))] for n in names}
    return replace(results[-1], seconds=seconds)


def run(order: Order) -> list[dict[str, Any]] | None:
    """Measure the collectives and sizes in `order` with every algorithm, as one rank of a job.

    Rank 0 returns a list of results as dicts for JSON, one for each collective and size. The other ranks return None.
    """
    with collectives.init(transport=order.transport) as comm:
        arrays, watch = Arrays(max(order.sizes), comm.size), Stopwatch(comm)
        situation, table = comm._linked.situation, comm._calls.prepare.table
        found = []
        for collective in order.collectives:
            names = [known.name for known in candidates(comm, collective)]
            for nbytes in order.sizes:
                chosen = select(collective, nbytes, situation, names.__contains__, table).algorithm
                racers = [AUTO, *(name for name in names if name != chosen)]
                calls = {name: arrays.call(comm, collective, name, nbytes) for name in racers}
                renew, (iterations, rounds) = arrays.renew(nbytes), _LOOKS
                seen = watch.turns(list(calls.values()), [iterations] * len(calls), rounds, renew).min(axis=0).tolist()
                near = {n: s for n, s in zip(calls, seen, strict=True) if n == AUTO or s <= _FAR * seen[0]}
                counts = watch.fitting(list(near.values()), order.budget, ROUNDS, _BOUNDS)
                seconds = watch.turns([calls[name] for name in near], counts, ROUNDS, renew)
                times = dict(zip(near, np.transpose(seconds).tolist(), strict=True))
                found.append(asdict(AlgorithmTimes(collective, comm.size, nbytes, chosen, times)))
        comm.barrier()
        return found if comm.rank == 0 else None


def main() -> None:
    """The main function of a rank's process. `measure` starts one process for each rank."""
    answering("collectives bench choice", lambda reported: run(Order.from_json(reported)))
