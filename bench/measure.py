"""Measures cases (calls of one size): all systems prepare a case, are checked, timed in turn, and checked again.

Invariant: in each round every system has one turn (A B A B ...), so that a change of the machine's speed affects all
systems. The time of an iteration is that of its slowest rank. Ranks exchange their times only after the last iteration
of a turn. Every rank goes through the same steps in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np

from collectives import Communicator
from collectives.bench.calls import Arrays, Bound, algorithm_of, bind
from collectives.bench.cases import OUT_OF_PLACE, Case
from collectives.bench.loop import Pace, Samples, Times, elapsed, ratio, sample
from collectives.bench.ping import Ping, Reading, alike
from collectives.bench.plan import Plan, places

AGAIN = 2  # untimed calls at the beginning of a turn: another contestant has just filled the caches


class Unsupported(Exception):
    """A contestant (a measured system) does not support this case; the exception's text gives the reason."""


class Contestant(Protocol):
    """A system that can be timed on a case (a call of one size). Every rank calls every method.

    Only the values that methods return on rank 0 are used. `name`: the name of the system in the table of figures.
    `is_ours`: whether the system is this library.
    """

    @property
    def name(self) -> str: ...
    @property
    def is_ours(self) -> bool: ...

    def prepare(self, case: Case) -> None:
        """Prepare the case (a call of one size), and make untimed first calls.

        Raises Unsupported on all ranks or on none.
        """

    def wrong(self, case: Case, salt: int) -> int:
        """Call once with input values chosen by `salt`; returns the number of wrong elements in all ranks' results."""

    def iterations(self, pace: Pace) -> int:
        """The number of iterations for which a turn, in which one system is timed, has time."""

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        """Time `iterations` calls; returns for every rank the seconds of each. Empty if nothing could be measured."""

    def finish(self) -> None:
        """Release the memory of the case that was measured."""


@dataclass(slots=True)
class Measurement:
    """The measured times of one system on one case (a call of one size).

    `rounds`: for each round, the seconds of each iteration on its slowest rank. `ranks`: for each rank, the median of
    its seconds. `wrong`: the number of wrong elements in results, None if results were not checked.
    """

    contestant: str
    is_ours: bool
    rounds: list[Samples] = field(default_factory=list)
    ranks: list[float] = field(default_factory=list)
    wrong: int | None = None
    unsupported: str = ""

    @property
    def samples(self) -> Samples:
        return np.concatenate(self.rounds) if self.rounds else np.zeros(0)

    @property
    def times(self) -> Times:
        return Times.of(self.samples)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the benchmark's table: the algorithm that ran, and the figures of all measured systems, ours first.

    `pings`: for each round, the times of a small message and of a short loop, before and after the round (see the
    module `ping`).
    """

    case: Case
    algorithm: str
    measurements: dict[str, Measurement]
    pings: tuple[tuple[Reading, Reading], ...] = ()

    @property
    def ours(self) -> Measurement:
        """This library's figures with which other systems are compared: those of its first form, in or out of place."""
        return next(m for m in self.measurements.values() if m.is_ours and not m.unsupported)

    @property
    def others(self) -> list[Measurement]:
        return [m for m in self.measurements.values() if not m.is_ours]

    @property
    def set_aside(self) -> list[int]:
        """The numbers of the rounds that ratios omit, because the machine was faster or slower than in most rounds."""
        return sorted(set(range(len(self.pings))) - set(alike(self.pings)))

    def ratio(self, theirs: Measurement) -> float:
        """This library's time divided by that of `theirs`, in the rounds that `set_aside` does not list."""
        return ratio(self.ours.rounds, theirs.rounds, alike(self.pings) if self.pings else None)

    @property
    def wrong(self) -> int:
        """The number of wrong elements in the results of this library."""
        return sum(m.wrong or 0 for m in self.measurements.values() if m.is_ours)


class Ours:
    """This library as one of the systems to measure, called in place or out of place, on the arrays in `memory`."""

    is_ours = True

    def __init__(self, comm: Communicator, plan: Plan, place: str, memory: Memory) -> None:
        self.name = place
        self._comm = comm
        self._plan = plan
        self._memory = memory
        self._bound: Bound | None = None

    def prepare(self, case: Case) -> None:
        wanted = places(self._plan, case.kind)
        if self.name not in wanted:
            raise Unsupported(f"{case.collective} is called {wanted[0]}")
        self._bound = bind(self._comm, case, self.name, self._memory.arrays(case))
        self._repeat(self._plan.warmup)

    def wrong(self, case: Case, salt: int) -> int:
        assert self._bound is not None
        return int(self._comm.allreduce(np.array(self._bound.wrong(salt), np.int64)))

    def iterations(self, pace: Pace) -> int:
        assert self._bound is not None
        call, renew = self._bound.call, self._renew

        def attempt(iterations: int) -> float:
            seconds = elapsed(call, self._comm.barrier, iterations, renew, self._plan.row)
            return float(self._comm.allreduce(np.array(seconds), "max"))

        return pace.iterations(attempt)

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        assert self._bound is not None
        self._repeat(AGAIN)
        times = sample(self._bound.call, self._comm.barrier, iterations, self._renew, self._plan.row)
        return tuple(self._comm.allgather(times))

    def finish(self) -> None:
        self._bound = None
        self._memory.free()

    @property
    def _renew(self) -> Callable[[], None] | None:
        assert self._bound is not None
        return self._bound.renew if self._plan.renew else None

    def _repeat(self, calls: int) -> None:
        assert self._bound is not None
        for _ in range(calls):
            self._comm.barrier()
            self._bound.call()


class Memory:
    """The arrays for the case (a call of one size) that is being measured."""

    def __init__(self, comm: Communicator, plan: Plan) -> None:
        self._comm = comm
        self._plan = plan
        self._case: Case | None = None
        self._arrays: Arrays | None = None

    def arrays(self, case: Case) -> Arrays:
        if self._case != case or self._arrays is None:
            self._arrays = None  # frees the old arrays before new ones are made
            needs_out = OUT_OF_PLACE in places(self._plan, case.kind)
            self._arrays = Arrays.of(self._comm, case, self._plan.buffers == "shared", needs_out)
            self._case = case
        return self._arrays

    def free(self) -> None:
        self._case = self._arrays = None


Note = Callable[[Case, str], None]  # called with the current step, to show progress


def measure(
    comm: Communicator, plan: Plan, contestants: Sequence[Contestant], ping: Ping, case: Case, number: int, note: Note
) -> Row:
    """Measure one case (a call of one size) with all systems, `contestants`; `number` counts the cases of the run.

    Only on rank 0 the result has the figures of other systems. `plan`: how to measure. `ping` shows the speed of the
    machine. `note` shows progress.
    """
    found = {c.name: Measurement(c.name, c.is_ours) for c in contestants}
    iterations: dict[str, int] = {}
    for contestant in contestants:
        note(case, f"{contestant.name}, check" if plan.check else contestant.name)
        mine = found[contestant.name]
        try:
            contestant.prepare(case)
        except Unsupported as reason:
            mine.unsupported = str(reason)
            continue
        if plan.check:
            mine.wrong = contestant.wrong(case, 2 * number)
        iterations[contestant.name] = plan.iterations or contestant.iterations(Pace.of(plan.budget, plan.rounds))
    takers = [c for c in contestants if c.name in iterations]
    ranks: dict[str, list[tuple[Samples, ...]]] = {c.name: [] for c in takers}
    pings = [ping.read()]
    for turn in range(plan.rounds):
        for contestant in takers:
            note(case, contestant.name + (f", round {turn + 1} of {plan.rounds}" if plan.rounds > 1 else ""))
            ranks[contestant.name].append(contestant.turn(iterations[contestant.name]))
        pings.append(ping.read())
    for contestant in takers:
        mine = found[contestant.name]
        if mine.wrong is not None:
            mine.wrong += contestant.wrong(case, 2 * number + 1)
        contestant.finish()
        mine.rounds = [np.max(everyones, axis=0) for everyones in ranks[contestant.name] if everyones]
        if len(mine.rounds) < plan.rounds:
            mine.unsupported = "ended during this case"
        mine.ranks = [float(np.median(np.concatenate(one))) for one in zip(*ranks[contestant.name], strict=True)]
    return Row(case, algorithm_of(comm, case), found, tuple(pairwise(pings)))
