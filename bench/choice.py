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
class Heat:
    """The times of one collective and size, with `algorithm="auto"` (AUTO) and with each other algorithm.

    `chosen`: the algorithm that "auto" runs. `seconds`: by algorithm, the seconds of one call in each round; None in
    rounds that left out the algorithm because it was far slower.
    """

    collective: str
    ranks: int
    nbytes: int
    chosen: str
    seconds: Mapping[str, Sequence[float | None]]

    @property
    def best(self) -> str:
        """The name of the fastest algorithm, or AUTO if none was faster than `algorithm="auto"`."""
        behind = self._behind()
        return max(behind, key=behind.__getitem__) if max(behind.values(), default=0.0) > 1 else AUTO

    @property
    def ratio(self) -> float:
        """The time with `algorithm="auto"` divided by that of the best algorithm, a median; at least 1."""
        return max([1.0, *self._behind().values()])

    def _behind(self) -> dict[str, float]:
        mine = self.seconds[AUTO]
        return {
            name: median(a / b for a, b in zip(mine, theirs, strict=True) if a is not None and b is not None)
            for name, theirs in self.seconds.items()
            if name != AUTO
        }

    def median(self, name: str) -> float:
        """The median seconds of the algorithm `name`, over the rounds in which the algorithm was measured."""
        return median(seconds for seconds in self.seconds[name] if seconds is not None)


def measure(order: Order, ranks: int, launches: int) -> list[Heat]:
    """Measure the calls of `order` among `ranks` processes, started `launches` times; returns a Heat for each call.

    The seconds for each size, `order.budget`, are divided equally among the launches. Raises StartError,
    OSError; RuntimeError if a rank failed.
    """
    each = asdict(replace(order, budget=order.budget / launches))
    reported = [[Heat(**heat) for heat in answer("collectives.bench.choice", each, ranks)] for _ in range(launches)]
    return [together(heats) for heats in zip(*reported, strict=True)]


def together(heats: Sequence[Heat]) -> Heat:
    """Join the results for one call from several launches into one, with the rounds of all in sequence.

    `heats`: one result from each launch.
    """
    names = dict.fromkeys(name for heat in heats for name in heat.seconds)
    seconds = {n: [s for heat in heats for s in heat.seconds.get(n, [None] * len(heat.seconds[AUTO]))] for n in names}
    return replace(heats[-1], seconds=seconds)


def run(order: Order) -> list[dict[str, Any]] | None:
    """Measure on this rank; returns a `Heat` for each call, as a dict for JSON, on rank 0, and None on other ranks."""
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
                found.append(asdict(Heat(collective, comm.size, nbytes, chosen, times)))
        comm.barrier()
        return found if comm.rank == 0 else None


def main() -> None:
    """The entry point of a rank's process that `measure` has started."""
    answering("collectives bench choice", lambda reported: run(Order.from_json(reported)))
