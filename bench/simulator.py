"""Measures collectives on this machine, so that the simulator's parameters can be fitted to their times.

Invariant: the time of a call is the slowest rank's, from a barrier before the call, as in the benchmark. Everything is
measured in several passes, and for each case the fastest pass counts, because the simulator does not predict how other
programs slow down a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import collectives
from collectives.algorithms import registry
from collectives.bench.order import Order
from collectives.bench.start import answer, answering
from collectives.calibration.calls import Arrays
from collectives.calibration.costs import Case, Measured
from collectives.calibration.timing import Stopwatch
from collectives.transports.host import HostIdentity, group_cores

PASSES: Final = 5
BOUNDS: Final = (2, 25)  # iterations of a case in a pass


def measure(order: Order, ranks: int) -> list[Measured]:
    """Measure the collectives and sizes in `order` on `ranks` ranks of this machine, with every algorithm.

    Return each collective, algorithm and size with its time in seconds. `order.budget` is about the time for all
    measurements, in seconds. Raises: StartError or OSError if a process cannot be started; RuntimeError if a rank
    failed.
    """
    found = answer("collectives.bench.simulator", asdict(order), ranks, {"COLLECTIVES_CALIBRATE": "off"})
    return [Measured(Case(*case), seconds) for case, seconds in found]


def fastest(several: Iterable[Sequence[Measured]]) -> list[Measured]:
    """Return, for each collective, algorithm and size, the shortest time in several measurements."""
    found: dict[Case, float] = {}
    for measured in several:
        for case, seconds in measured:
            found[case] = min(seconds, found.get(case, seconds))
    return [Measured(case, seconds) for case, seconds in found.items()]


def run(order: Order) -> list[Any] | None:
    """Measure the collectives and sizes in `order` with every algorithm, as one rank of a job.

    Rank 0 returns each collective, algorithm and size with its time in seconds. The other ranks return None.
    """
    with collectives.init(transport=order.transport) as comm:
        reported = [json.loads(text) for text in comm._everyones(json.dumps(comm._linked.place.to_json()).encode())]
        cores = group_cores(comm._linked.place, [HostIdentity.from_json(value) for value in reported])
        cases = [
            Case(collective, known.name, comm.size, cores, nbytes)
            for nbytes in order.sizes
            for collective in order.collectives
            for known in registry.algorithms(collective, comm.size)
            if not known.hosts  # on one host, an algorithm for several hosts equals the algorithm inside it
        ]
        arrays, watch = Arrays(max(order.sizes), comm.size), Stopwatch(comm)
        calls = [arrays.call(comm, case.collective, case.algorithm, case.nbytes) for case in cases]
        watch.turns(calls, [1] * len(calls), 1)
        once = watch.turns(calls, [1] * len(calls), 1)[0]
        iterations = watch.fitting(once.tolist(), order.budget, PASSES, BOUNDS)
        seconds = watch.turns(calls, iterations, PASSES).min(axis=0).tolist()
        comm.barrier()
        return list(zip(cases, seconds, strict=True)) if comm.rank == 0 else None


def main() -> None:
    """The main function of a rank's process. `measure` starts one process for each rank."""
    answering("collectives bench simulator", lambda reported: run(Order.from_json(reported)))
