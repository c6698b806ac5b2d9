"""Measures cases (calls of one size): all systems prepare a case, are checked, timed in turn, and checked again.

Invariant: in each round every system has one turn (A B A B ...), so that a change of the machine's speed affects all
systems. The time of an iteration is that of its slowest rank. Ranks exchange their times only after the last iteration
of a turn. Every rank goes through the same steps in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from collectives import Communicator
from collectives.bench.calls import Arrays, Bound, bind
from collectives.bench.cases import OUT_OF_PLACE, Case
from collectives.bench.loop import Pace, Samples, Times, elapsed, ratio, sample
from collectives.bench.ping import Ping, Reading, alike
from collectives.bench.plan import Plan, places

AGAIN = 2  # untimed calls at the beginning of a turn: another contestant has just filled the caches


class Unsupported(Exception):
    """The measured library cannot run this collective with these arguments. The message has the reason."""


class Contestant(Protocol):
    """A library that the benchmark times, either this one or another such as Open MPI.

    All ranks call every method, with the same arguments. Only the values that rank 0 gets are used. `name` is the
    library's name in the output. `is_ours` is True for this library.
    """

    @property
    def name(self) -> str: ...
    @property
    def is_ours(self) -> bool: ...

    def prepare(self, case: Case) -> None:
        """Allocate the arrays for the collective `case`, and run it a few times without timing it.

        Raises: Unsupported, on all ranks, if the library does not support the collective.
        """

    def wrong(self, case: Case, salt: int) -> int:
        """Run the collective `case` once on test data; return the number of wrong elements in the results of all ranks.

        `salt` selects the test data; each value gives other data.
        """

    def iterations(self, pace: Pace) -> int:
        """Return how many iterations fit into the time `pace.seconds`."""

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        """Run the measured collective `iterations` times. Return an array for each rank, with the seconds of each call.

        If nothing could be measured, return an empty tuple.
        """

    def finish(self) -> None:
        """Free the arrays that `prepare` has allocated."""


@dataclass(slots=True)
class Measurement:
    """The times of one library for one collective at one size.

    The benchmark times all libraries in turn, in several rounds. `rounds` has an array for each round: for each call,
    the seconds on its slowest rank. `ranks` has the median time of a call on each rank, in seconds. `wrong` is the
    number of wrong elements in the results, or None if the results were not checked. `unsupported` is the reason why
    nothing was measured.
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
    """One line of the benchmark's output: the times of all libraries for one collective at one size.

    `algorithm` is the algorithm that this library ran. `measurements` maps the name of each library to its times; this
    library comes first. `pings` has two readings of the machine's speed for each round of measurement, taken before
    and after the round (see the module `ping`).
    """

    case: Case
    algorithm: str
    measurements: dict[str, Measurement]
    pings: tuple[tuple[Reading, Reading], ...] = ()

    @property
    def ours(self) -> Measurement:
        """The times of this library that are compared with the times of other libraries.

        The out-of-place times are used if they were measured, otherwise the in-place times.
        """
        return next(m for m in self.measurements.values() if m.is_ours and not m.unsupported)

    @property
    def others(self) -> list[Measurement]:
        return [m for m in self.measurements.values() if not m.is_ours]

    @property
    def set_aside(self) -> list[int]:
        """The indices of the rounds in which the machine was faster or slower than in most rounds.

        These rounds do not count when libraries are compared.
        """
        return sorted(set(range(len(self.pings))) - set(alike(self.pings)))

    def ratio(self, theirs: Measurement) -> float:
        """Return this library's time divided by `theirs`, the time of another library for the same collective.

        Rounds in which the machine was faster or slower than in most rounds do not count.
        """
        return ratio(self.ours.rounds, theirs.rounds, alike(self.pings) if self.pings else None)

    @property
    def wrong(self) -> int:
        """The number of wrong elements in the results of this library."""
        return sum(m.wrong or 0 for m in self.measurements.values() if m.is_ours)


class Ours:
    """Times this library, with the methods of `Contestant`.

    `place` is "in-place" or "out-of-place": the form in which collectives are called. `memory` has the arrays.
    """

    is_ours = True

    def __init__(self, comm: Communicator, plan: Plan, place: str, memory: Binder) -> None:
        self.name = place
        self._comm = comm
        self._plan = plan
        self._memory = memory
        self._bound: Runnable | None = None

    def prepare(self, case: Case) -> None:
        wanted = places(self._plan, case.kind)
        if self.name not in wanted:
            raise Unsupported(f"{case.collective} is called {wanted[0]}")
        self._bound = self._memory.bind(case, self.name)
        self._repeat(self._plan.warmup)

    def wrong(self, case: Case, salt: int) -> int:
        assert self._bound is not None
        return int(self._comm.allreduce(np.array(self._bound.wrong(salt), np.int64)))

    def iterations(self, pace: Pace) -> int:
        assert self._bound is not None
        call, renew, settle = self._bound.call, self._renew, self._bound.settle

        def attempt(iterations: int) -> float:
            seconds = elapsed(call, self._comm.barrier, iterations, renew, self._plan.row, settle)
            return float(self._comm.allreduce(np.array(seconds), "max"))

        return pace.iterations(attempt)

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        assert self._bound is not None
        self._repeat(AGAIN)
        bound = self._bound
        times = sample(bound.call, self._comm.barrier, iterations, self._renew, self._plan.row, bound.settle)
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
            if self._bound.settle is not None:
                self._bound.settle()


class Runnable(Protocol):
    """A collective together with its arrays, ready to be run and timed: see `bench.calls.Bound`."""

    @property
    def call(self) -> Callable[[], Any]: ...
    @property
    def settle(self) -> Callable[[], Any] | None:
        """A function that waits until all calls are complete, or None if each call is complete when it returns."""

    def renew(self) -> None: ...
    def wrong(self, salt: int) -> int: ...


class Binder(Protocol):
    """Allocates the arrays for the collective that is being measured, and makes it ready to be run on these arrays."""

    def bind(self, case: Case, place: str) -> Runnable:
        """Return the collective `case`, ready to be called "in-place" or "out-of-place", as `place` says.

        Raises: Unsupported, on all ranks or on none.
        """

    def free(self) -> None: ...


class Memory:
    """The input and output arrays for the collective that is being measured, so that they are allocated only once."""

    def __init__(self, comm: Communicator, plan: Plan) -> None:
        self._comm = comm
        self._plan = plan
        self._case: Case | None = None
        self._arrays: Arrays | None = None

    def bind(self, case: Case, place: str) -> Bound:
        return bind(self._comm, case, place, self._arrays_for(case))

    def _arrays_for(self, case: Case) -> Arrays:
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
    plan: Plan,
    contestants: Sequence[Contestant],
    ping: Ping,
    case: Case,
    number: int,
    note: Note,
    algorithm: Callable[[Case], str],
) -> Row:
    """Time one collective at one size with all libraries in `contestants`, in turns; return all times.

    `plan` has the options, such as the number of rounds. `case` is the collective and its size. `number` counts the
    measurements of this run of the benchmark, and selects the test data. `ping` measures the speed of the machine
    before and after each round. `note` is called with messages about progress. `algorithm(case)` returns the name of
    the algorithm, or the mechanism for CUDA devices, that this library has run. The times of other libraries are valid
    on rank 0 only.
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
    return Row(case, algorithm(case), found, tuple(pairwise(pings)))
