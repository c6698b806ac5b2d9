"""How close the automatic choice comes to the best single algorithm: what a rank measures, and who starts it.

Invariant: the automatic choice and every algorithm that is not far behind take turns within one run, and are compared
within each turn; a time is that of the slowest rank after a barrier, and after every rank has written its input anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import numpy as np

import collectives
from bench.order import Order
from bench.start import answer, answering
from collectives.calibration.calls import Arrays
from collectives.calibration.run import candidates
from collectives.calibration.timing import Stopwatch
from collectives.schedule.select import select

BAR: Final = 1.15  # of the best algorithm's time
AUTO: Final = "auto"
ROUNDS: Final = 7
_LOOKS: Final = (5, 2)  # iterations and rounds of a first look
_FAR: Final = 2.0  # what takes longer than the choice by this factor at first sight is not looked at again
_BOUNDS: Final = (3, 200)  # iterations in a round


@dataclass(frozen=True, slots=True)
class Heat:
    """One call: the algorithm `chosen`, and seconds by round, of AUTO and of the others."""

    collective: str
    ranks: int
    nbytes: int
    chosen: str
    seconds: Mapping[str, list[float]]

    @property
    def best(self) -> str:
        """AUTO, or what is faster."""
        behind = self._behind()
        return max(behind, key=behind.__getitem__) if max(behind.values(), default=0.0) > 1 else AUTO

    @property
    def ratio(self) -> float:
        """The automatic choice's time over the best one's: the median over the rounds, at least 1."""
        return max([1.0, *self._behind().values()])

    def _behind(self) -> dict[str, float]:
        mine = self.seconds[AUTO]
        return {
            name: median(a / b for a, b in zip(mine, theirs, strict=True))
            for name, theirs in self.seconds.items()
            if name != AUTO
        }


def measure(order: Order, ranks: int) -> list[Heat]:
    """Start so many ranks, which measure, in about the budget a size.

    Raises StartError, OSError; RuntimeError where a rank failed.
    """
    return [Heat(**heat) for heat in answer("bench.choice", asdict(order), ranks)]


def run(order: Order) -> list[dict[str, Any]] | None:
    """Measure, as one rank; on rank 0 each Heat, as JSON takes it."""
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
    """A process that `measure` started as a rank."""
    answering("collectives bench choice", lambda told: run(Order.from_json(told)))
