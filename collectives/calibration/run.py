"""A whole calibration: costs of links, a first measurement of all algorithms, and comparisons of the best.

Invariant: a calibration exceeds its time budget by at most one call. For sizes that it does not measure in this time,
the built-in rows of the algorithm table stay in use. `calibrate` is collective: every rank calls it with the same
arguments, and gets the same result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import log
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from collectives.algorithms import registry
from collectives.calibration import formats, links, noise, protocol, sockets
from collectives.calibration.calls import Arrays, Call
from collectives.calibration.model import MOST_PLAYED, Model
from collectives.calibration.settle import STRANGER, SWITCH, rows, settle
from collectives.calibration.sockets import SMALLEST
from collectives.calibration.timing import Stopwatch, Times
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.form import Schedule
from collectives.schedule.layout import Layout
from collectives.schedule.select import select
from collectives.schedule.table import Row, Situation, Table, join

if TYPE_CHECKING:
    from collectives.core.communicator import Communicator

Say = Callable[[str, float], None]  # called with what is being measured, and the share of the budget that is spent


@dataclass(frozen=True, slots=True)
class Effort:
    """The settings that say how thoroughly a calibration compares algorithms for each collective, at several sizes.

    - `seconds`: the time limit
    - `collectives`: in the order in which they are measured, as long as time is left
    - `looks`: the sizes in bytes of a first, short measurement of all algorithms
    - `within`: an algorithm that the first measurement predicts to be slower than the fastest by more than this factor
      is not measured again
    - `sizes`: the sizes in bytes at which the remaining algorithms are compared, ascending
    - `racers`: the largest number of algorithms to compare at one size
    - `rounds`, `iterations`: how many rounds a comparison has, and the least and largest number of repetitions of a
      call in a round
    - `to_the_end`: the last row of the resulting table applies to all larger sizes
    - `switch`: the gain that is needed to change the algorithm in the table from one size to the next
    - `stranger`: the gain that is needed for an algorithm other than the library's default. Both gains are logarithms
      of a ratio of times
    - `doubt`: how many standard errors are subtracted from a measured gain
    - `links`: whether to measure how links between hosts are fastest: how many TCP connections between two ranks are
      best, from which number of bytes on messages over verbs should use the rendezvous protocol, and which wire formats
      save time
    """

    name: str
    seconds: float
    sizes: tuple[int, ...]
    looks: tuple[int, ...]
    collectives: tuple[str, ...]
    rounds: int
    iterations: tuple[int, int]  # of a call in one round, at least and at most
    racers: int
    within: float
    to_the_end: bool
    switch: float = SWITCH
    stranger: float = STRANGER
    doubt: float = 1.0
    links: bool = False

    def with_(self, seconds: float, most: int, collectives: tuple[str, ...]) -> Effort:
        """Returns a copy of these settings with other limits: on time, on sizes, and on the collectives to measure.

        `most`: the largest size in bytes. If `collectives` is empty, the collectives stay the same.
        """
        sizes = tuple(s for s in self.sizes if s <= most) or self.sizes[:1]
        looks = tuple(sorted({*(s for s in self.looks if s < sizes[-1]), sizes[-1]}))
        return replace(self, seconds=seconds, sizes=sizes, looks=looks, collectives=collectives or self.collectives)


_ALL: Final = (
    *("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall", "reduce", "gather", "scatter"),
    *("scan", "exscan", "barrier"),
)
FULL: Final = Effort(
    name="full",
    seconds=60.0,
    sizes=tuple(8 << n for n in range(24)),
    looks=(8, 4 << 10, 64 << 10, 1 << 20, 64 << 20),
    collectives=_ALL,
    rounds=5,
    iterations=(2, 100),
    racers=3,
    within=1.6,
    to_the_end=True,
    links=True,
)
QUICK: Final = Effort(
    name="quick",
    seconds=1.5,
    sizes=tuple(8 << 3 * n for n in range(7)),
    looks=(8, 32 << 10, 2 << 20),
    collectives=_ALL[:5],
    rounds=3,
    iterations=(2, 20),
    racers=2,
    within=1.4,
    to_the_end=False,
    switch=log(1.1),
    stranger=log(1.12),
    doubt=2.0,
)


class Outcome(NamedTuple):
    """The result of a calibration: `table` says which algorithm is fastest for which sizes.

    - `links`: costs of messages, by transport
    - `sockets`: the best number of TCP connections between two ranks, None if not measured
    - `rendezvous`: from which number of bytes on messages over verbs should use the rendezvous protocol, None if not
      measured, or if the library's choice is best
    - `seconds`: how long the calibration took
    - `noise`: reasons why the times are unreliable. If there are any, `table` is empty, unless the caller asked to
      tolerate them
    """

    table: Table
    links: dict[str, links.Link]
    sockets: int | None
    seconds: float
    noise: tuple[str, ...] = ()
    rendezvous: int | None = None

    @property
    def facts(self) -> dict[str, str]:
        """Returns all but `table` and `seconds` as a dict of texts by name; they are saved in the file of `table`."""
        reported = links.facts(self.links)
        if self.noise:
            reported["noise"] = "; ".join(self.noise)
        chosen = {"sockets": self.sockets, "rendezvous": self.rendezvous}
        return {**{name: str(value) for name, value in chosen.items() if value is not None}, **reported}


def calibrate(
    comm: Communicator, usual: Table, effort: Effort, say: Say | None = None, *, tolerant: bool = False
) -> Outcome:
    """Measures which algorithms are fastest for the ranks of `comm`. All ranks have to call this function.

    `usual`: the table by which algorithms are chosen without a calibration. `effort`: how thorough the calibration is.
    `say` is called with a text about the current measurement, and the fraction of the time that has passed. The
    calibration stops if other programs disturb it, unless `tolerant` is set. Ranks are synchronized by barriers and
    allreduces, whose algorithms `comm` chooses as usual. Raises the errors of collective calls.
    """
    watch, quiet = Stopwatch(comm), _Quiet(comm, tolerant)
    say = say or _silent
    kind = comm._linked.situation.kind if effort.links and effort.sizes[-1] >= SMALLEST else "any"
    with ExitStack() as opened:
        linked = comm
        if kind == "tcp":
            say("allreduce over links of one and of several sockets", 0.0)
            linked = opened.enter_context(sockets.best_linked(comm, watch, effort.sizes[-1]))
        elif kind == "verbs":
            say("messages by the eager and by the rendezvous protocol", 0.0)
            linked = opened.enter_context(protocol.best_linked(comm, watch))
        found = _calibrate(linked, usual, effort, watch, say, quiet, kind in ("tcp", "verbs"))
        if found.noise and not tolerant:
            return found
        if kind == "tcp":
            return found._replace(sockets=linked._linked.sockets)
        return found._replace(rendezvous=linked._linked.rendezvous or None)


def _calibrate(
    comm: Communicator,
    usual: Table,
    effort: Effort,
    watch: Stopwatch,
    say: Say,
    quiet: _Quiet,
    with_formats: bool,
) -> Outcome:
    linked = comm._linked
    costs = links.measure(comm, linked.kinds, watch)
    # Calls wait for the slowest link, so each cost is the largest of all links.
    alpha, beta, gamma = (max(getattr(link, name) for link in costs.values()) for name in ("alpha", "beta", "gamma"))
    race = _Race(comm, linked.situation, linked.layout, usual, effort, watch, links.Link(alpha, beta, gamma), say)
    found: list[Row] = []
    contested = [name for name in effort.collectives if len(candidates(comm, name)) > 1]
    until = effort.seconds * (1 - formats.SHARE * with_formats)
    for number, collective in enumerate(contested):
        end = watch.spent + (until - watch.spent) * _share(contested[number:])
        found += race.run(collective, end)
        reasons = quiet.judge(race.spreads)
        if reasons and not quiet.tolerant:
            return Outcome(Table(()), {}, None, watch.spent, reasons)
    if with_formats:
        chosen = join([Table(tuple(found)), usual])
        found += formats.measure(comm, effort.collectives, effort.sizes[-1], chosen, watch, effort.seconds, say)
    return Outcome(Table(tuple(found)), costs, None, watch.spent, quiet.judge(race.spreads))


class _Quiet:
    """Judges from kernel counters of all ranks whether other programs have disturbed the calibration so far."""

    def __init__(self, comm: Communicator, tolerant: bool) -> None:
        self.tolerant = tolerant
        self._comm = comm
        self._watch = noise.Watch()

    def judge(self, spreads: Sequence[float]) -> tuple[str, ...]:
        """Returns the reasons why the times measured so far are unreliable, the same on every rank; empty if none.

        Every rank has to call this. `spreads`: for each measurement, the time of the slowest round divided by the time
        of the fastest round.
        """
        layout = self._comm._linked.layout
        mine = self._watch.reading(layout.hosts[self._comm.rank])
        reported = self._comm._everyones(json.dumps(mine.to_json()).encode())
        readings = [noise.Reading.from_json(json.loads(text)) for text in reported]
        return noise.judge(readings, layout.largest, noise.middle(spreads))


def candidates(comm: Communicator, collective: str) -> list[Algorithm]:
    """The algorithms for `collective` that a calibration compares.

    Some algorithms depend on which ranks share a host. Such algorithms are compared only if the group has several
    hosts, and several ranks on one of these hosts.
    """
    nested = comm._linked.layout.nested
    return [a for a in registry.algorithms(collective, comm.size) if nested or not a.hosts]


def _share(left: Sequence[str]) -> float:
    """The first collective's fraction of the time that remains for all of `left`; allreduce counts three times."""
    weights = [3.0 if name == "allreduce" else 1.0 for name in left]
    return weights[0] / sum(weights)


def _silent(_what: str, _share: float) -> None:
    """Report no progress."""


@dataclass(slots=True)
class _Race:
    comm: Communicator
    situation: Situation
    layout: Layout
    usual: Table
    effort: Effort
    watch: Stopwatch
    link: links.Link
    say: Say
    spreads: list[float] = field(default_factory=list)  # slowest round over fastest, for each algorithm and size

    def run(self, collective: str, end: float) -> list[Row]:
        """Compares the algorithms for a collective, and returns rows for the table that chooses algorithms.

        `end`: when to end, in seconds since the calibration began.
        """
        sizes = (0,) if collective == "barrier" else self.effort.sizes
        looks = (0,) if collective == "barrier" else self.effort.looks
        arrays = Arrays(sizes[-1], self.comm.size)
        names = [a.name for a in candidates(self.comm, collective)]
        models = self._look(collective, names, looks, arrays, self.watch.spent + (end - self.watch.spent) / 3)
        times: list[dict[str, float]] = []
        losses: list[dict[str, float]] = []
        usual: list[str] = []
        races = self.watch.spent + 0.75 * (end - self.watch.spent)
        for number, nbytes in enumerate(sizes):
            default = select(collective, nbytes, self.situation, names.__contains__, self.usual).algorithm
            racers = self._racers(models, nbytes, {default, *usual[-1:]}, _fastest(losses))
            expected = [models[name].seconds(nbytes) for name in racers]
            budget = (races - self.watch.spent) / (len(sizes) - number)
            if budget <= 0 or (times and self.effort.rounds * sum(expected) > 4 * budget):
                break  # the time does not suffice for this size or larger ones
            here, lost = self._heat(collective, nbytes, racers, expected, default, arrays, budget)
            times.append(here)
            losses.append(lost)
            usual.append(default)
        chosen = settle(losses, usual, self.effort.switch, self.effort.stranger)
        doubtful = [n for n, name in enumerate(chosen) if name != usual[n]]
        for number, at in enumerate(doubtful):  # a gain over the default has to be measured twice
            budget = (end - self.watch.spent) / (len(doubtful) - number)
            pair = [chosen[at], usual[at]]
            expected = [times[at][name] for name in pair]
            if budget <= self.effort.rounds * sum(expected):
                continue
            _, lost = self._heat(collective, sizes[at], pair, expected, usual[at], arrays, budget)
            losses[at][chosen[at]] = max(losses[at][chosen[at]], lost[chosen[at]])
            losses[at][usual[at]] = min(losses[at][usual[at]], lost[usual[at]])
        chosen = settle(losses, usual, self.effort.switch, self.effort.stranger)
        to_the_end = collective == "barrier" or (self.effort.to_the_end and len(chosen) == len(sizes))
        return rows(collective, self.situation, sizes[: len(chosen)], chosen, times, to_the_end)

    def _heat(
        self,
        collective: str,
        nbytes: int,
        racers: Sequence[str],
        expected: Sequence[float],
        usual: str,
        arrays: Arrays,
        budget: float,
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Compare the algorithms `racers` at one size: time each in turn, for about `budget` seconds in all.

        `expected`: predicted seconds of a call by each algorithm. `usual`: the default algorithm. Returns two mappings
        from algorithms: to the median seconds of a call, and to the loss against the fastest algorithm (see `_losses`).
        """
        self.say(f"{collective} of {nbytes} bytes: {', '.join(racers)}", self.watch.spent / self.effort.seconds)
        if len(racers) == 1:
            return {racers[0]: expected[0]}, {racers[0]: 0.0}
        calls = [arrays.call(self.comm, collective, name, nbytes) for name in racers]
        iterations = self._iterations(expected, budget)
        seconds = self.watch.turns(calls, iterations, self.effort.rounds, arrays.renew(nbytes))
        self.spreads += (seconds.max(axis=0) / seconds.min(axis=0)).tolist()
        medians = np.median(seconds, axis=0).tolist()
        lost = _losses(seconds, racers.index(usual), self.effort.doubt)
        return dict(zip(racers, medians, strict=True)), dict(zip(racers, lost, strict=True))

    def _look(
        self, collective: str, names: Sequence[str], looks: Sequence[int], arrays: Arrays, end: float
    ) -> dict[str, Model]:
        """Models that predict each algorithm's time, corrected by short measurements at the sizes `looks`."""
        self.say(f"{collective}: a first look at {', '.join(names)}", self.watch.spent / self.effort.seconds)
        models = {name: Model(self._schedules(collective, name), self.link) for name in names}
        seen: dict[str, dict[int, float]] = {name: {} for name in names}
        for nbytes in looks:
            # Algorithms that were far slower already are not measured with more bytes.
            left = [name for name in names if nbytes < 1 << 20 or self._may_win(seen, name)]
            if self.watch.spent >= end:
                break
            calls: list[Call] = [arrays.call(self.comm, collective, name, nbytes) for name in left]
            renew = arrays.renew(nbytes)
            once = self.watch.turns(calls, [2] * len(calls), 1, renew)[0]
            budget = max(0.0, end - self.watch.spent) / len(looks)
            again = self.watch.turns(calls, self._iterations(once.tolist(), budget), 1, renew)[0]
            for name, seconds in zip(left, np.minimum(once, again).tolist(), strict=True):
                seen[name][nbytes] = seconds
        for name, model in models.items():
            if seen[name]:
                model.correct(seen[name])
        return models

    def _may_win(self, seen: dict[str, dict[int, float]], name: str) -> bool:
        last = max((size for times in seen.values() for size in times), default=None)
        if last is None:
            return True
        here = {other: times[last] for other, times in seen.items() if last in times}
        return name in here and here[name] <= 4 * min(here.values())

    def _racers(self, models: dict[str, Model], nbytes: int, wanted: set[str], before: str | None) -> list[str]:
        """The algorithms to compare at a size: those with the shortest predicted times, then `wanted` and `before`.

        `before`: the algorithm that was fastest at the size before, if any.
        """
        expected = sorted((model.seconds(nbytes), name) for name, model in models.items())
        near = [name for seconds, name in expected if seconds <= self.effort.within * expected[0][0]]
        racers = near[: self.effort.racers]
        racers += [name for _, name in expected if name not in racers and (name in wanted or name == before)]
        return racers

    def _iterations(self, expected: Sequence[float], budget: float) -> list[int]:
        """How often to repeat each call in a round. All rounds together take `budget` seconds, equal for all calls."""
        return self.watch.fitting(expected, budget, self.effort.rounds, self.effort.iterations)

    def _schedules(self, collective: str, name: str) -> list[Schedule]:
        size = self.comm.size
        if size > MOST_PLAYED:
            return []
        known = registry.get(collective, name)
        return [known(rank, size, 0, self.layout) for rank in range(size)]


def _losses(seconds: Times, usual: int, doubt: float) -> list[float]:
    """How much slower than the fastest each algorithm is: log(its time / fastest time), as the median of all rounds.

    `doubt` standard errors of the difference from the default algorithm are added to each value, so that the default
    is kept on a noisy machine. `usual`: the default's column in `seconds`, which has a row for each round.
    """
    logs = np.log(seconds)
    loss = np.median(logs - logs.min(axis=1, keepdims=True), axis=0)
    noise = (logs - logs[:, [usual]]).std(axis=0) / np.sqrt(len(logs))
    found: list[float] = (loss - loss.min() + doubt * noise).tolist()
    return found


def _fastest(losses: Sequence[dict[str, float]]) -> str | None:
    return min(losses[-1], key=losses[-1].__getitem__) if losses else None
