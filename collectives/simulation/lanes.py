"""Simulates a group in which all ranks have the same schedule, by simulating only some of the ranks.

These are the ranks of one period: the number of ranks after which the topology (hosts and switches) repeats itself. A
simulated rank is called a lane.

Invariant: the times are those that module `everyone` gives, because ranks in other repetitions of the topology have the
same times as their counterparts among the lanes.

In some schedules, such as a ring, the same rounds are repeated. After each repetition, the times on which later rounds
depend are compared with those before. If all of these times have increased by the same amount, they increase by this
amount in every later repetition too, because later times are maxima and sums of them. Then the simulation skips the
remaining repetitions. A message that was sent many rounds before the step that receives it is not among these times:
rounds are skipped only when all such messages have arrived before the current round began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from collectives.simulation.arranged import NEAR, Arranged
from collectives.simulation.everyone import Played
from collectives.simulation.network import Network, Sends, Takes
from collectives.simulation.relations import Array
from collectives.simulation.steps import SEND

_SAME: Final = 1e-9
_KEPT: Final = 1 << 24  # times; if there are more, those of early rounds are dropped


class _Times(NamedTuple):
    """When first slices are done, and when last bytes are done: arrays [task of a round, lane]."""

    first: Array
    last: Array

    def later(self, seconds: float) -> _Times:
        return _Times(self.first + seconds, self.last + seconds)


class _Arrivals(NamedTuple):
    """When messages for some tasks of a round arrive: a row of `times` for each of the tasks, at the places `there`."""

    there: Array
    times: _Times


@dataclass(slots=True, eq=False)
class _Equipment:
    """The tasks of a round in the form that `network` simulates; rounds with the same tasks share it."""

    takes: Takes | None
    sends: Sends | None
    lanes: Array  # [message, sending lane]: the lane that receives the message


@dataclass(slots=True, eq=False)
class _Mark:
    """The times before round `round`."""

    round: int
    state: Array
    busy: list[Array]


class Lanes:
    """Simulates a group in which all ranks have the same steps, by simulating only its first `lanes` ranks.

    `arranged`: the steps. Sizes of messages are in blocks, the parts of a buffer.
    """

    def __init__(self, arranged: Arranged, lanes: int) -> None:
        self.lanes, self.arranged = lanes, arranged

    @property
    def sent(self) -> float:
        """Blocks that a rank sends."""
        return self.arranged.sent

    def play(self, network: Network, unit: float) -> Played:
        """Simulates the steps of the ranks on `network`; returns the seconds and the number of rounds of messages.

        `unit`: the size of a block in bytes.
        """
        run = _Run(self.arranged, self.lanes, network, unit)
        number = 0
        while number < self.arranged.count:
            run.round(number)
            number = run.forward(number + 1)
        return Played(run.end, self.arranged.rounds)


class _Run:
    """One simulation of the rounds, and the times so far."""

    def __init__(self, arranged: Arranged, lanes: int, network: Network, unit: float) -> None:
        self._all, self._lanes, self._network, self._unit = arranged, lanes, network, unit
        self._equipment: dict[int, _Equipment] = {}
        self._times: dict[int, _Times] = {}  # by round
        self._arrived: dict[int, _Arrivals] = {}  # by the round that receives
        self._early: dict[
            int, list[_Arrivals]
        ] = {}  # the same, of messages that were sent more than NEAR rounds before
        self._early_end = 0.0
        self._mark: _Mark | None = None
        self._patience = 0
        self._frugal = len(arranged.forms) * lanes > _KEPT
        self.end = 0.0

    def round(self, number: int) -> None:
        """Play one round."""
        look, count = int(self._all.looks[number]), self._lanes
        if look not in self._equipment:
            self._equipment[look] = self._equip(number)
        equipment = self._equipment[look]
        ready = self._ready(number)
        first, last = ready.first.ravel(), ready.last.ravel()
        taking = 0
        if equipment.takes is not None:
            taking = equipment.takes.core.size
            first[:taking], last[:taking] = self._network.perform(equipment.takes, first[:taking], last[:taking])
        if equipment.sends is not None:
            begun, ended, first[taking:], last[taking:] = self._network.depart(
                equipment.sends, first[taking:], last[taking:]
            )
            self._deliver(number, equipment.lanes, begun.reshape(-1, count), ended.reshape(-1, count))
        self._times[number] = ready
        self.end = max(self.end, float(last.max()))
        if self._frugal and number >= NEAR and self._is_over(number - NEAR, number):
            self._times.pop(number - NEAR, None)

    def forward(self, number: int) -> int:
        """Returns the number of the round of messages to simulate next: `number`, or a later round.

        Rounds that repeat earlier rounds are skipped: their times can be computed from the times of the earlier rounds.
        """
        if number >= self._all.count:
            return number
        period, begin, until = (int(column[number]) for column in self._all.repetitions)
        if until - number < 8 * period or number - begin < NEAR + period or not self._are_in(number - 1):
            return number
        mark = self._mark
        if mark is None or mark.round < begin:
            self._patience = 8 * period
            self._mark = self._marked(number, self._state(number))
            return number
        length = number - mark.round
        if length % period:
            return number
        state = self._state(number)
        if state.size == mark.state.size:
            moved = state - mark.state
            step, times = float(moved.max()), (until - number) // length
            if times and step - float(moved.min()) <= _SAME * step and self._is_over(number - NEAR, number - 1):
                self._skip(number, length, times, step, mark)
                self._mark = None
                return number + times * length
        if length >= self._patience:
            self._patience *= 2
            self._mark = self._marked(number, state)
        return number

    def _ready(self, number: int) -> _Times:
        tasks = self._all.tasks(number)
        first, last = np.zeros((2, tasks.stop - tasks.start, self._lanes))
        arrivals = self._early.pop(number, [])
        if (arrived := self._arrived.pop(number, None)) is not None:
            arrivals = [*arrivals, arrived]
        for there, due in arrivals:
            first[there] = np.maximum(first[there], due.first)
            last[there] = np.maximum(last[there], due.last)
        waits = self._all.waits
        for other, items, plain in waits.of(number):
            if (times := self._times.get(other)) is not None:
                source, place, progress = waits.source[items], waits.place[items], self._all.progress[items, None]
                begun, ended = times.first[source], times.last[source]
                begun = np.where(progress < 0, 0.0, begun + progress * (ended - begun))
                if not plain:
                    place, begun, ended = _latest(place, begun, ended)
                first[place], last[place] = np.maximum(first[place], begun), np.maximum(last[place], ended)
        return _Times(first, last)

    def _deliver(self, number: int, lanes: Array, begun: Array, ended: Array) -> None:
        """Note when the messages of round `number` arrive; `begun` and `ended` have a row for each message."""
        starts, ends = np.empty_like(begun), np.empty_like(ended)
        np.put_along_axis(starts, lanes, begun, axis=1)  # each lane sends one of a row's messages, and gets one
        np.put_along_axis(ends, lanes, ended, axis=1)
        messages = self._all.messages
        for taker, items, plain in messages.of(number):
            source, place = messages.source[items], messages.place[items]
            begun, ended = starts[source], ends[source]
            if not plain:
                place, begun, ended = _latest(place, begun, ended)
            found, before = _Arrivals(place, _Times(begun, ended)), self._arrived.get(taker)
            if taker - number > NEAR:
                self._early.setdefault(taker, []).append(found)
                self._early_end = max(self._early_end, float(ended.max()))
            else:
                self._arrived[taker] = found if before is None else _joined(before, found)

    def _equip(self, number: int) -> _Equipment:
        everything, ranks = self._all, np.arange(self._lanes)
        count = ranks.size
        forms, ends = everything.forms[everything.tasks(number)], everything.ends
        part = slice(int(ends.begins[number]), int(ends.begins[number + 1]))
        owner, turn, constant = ends.place[part], ends.turn[part], ends.constant[part]
        sending = forms[:, 0] == SEND
        partner = everything.ranks.peers(everything.relation, constant[:, None], ranks)
        takes = sends = None
        lanes = partner[:0]
        if not sending.all():
            mine = np.flatnonzero(~sending[owner])
            near, far = np.zeros((2, len(forms), count))
            inside = self._network.is_inside(ranks, partner[mine])
            np.add.at(near, owner[mine], inside)
            np.add.at(far, owner[mine], ~inside)
            kind, _, blocks, operands = (np.repeat(column, count) for column in forms[~sending].T)
            rank = np.tile(ranks, int((~sending).sum()))
            parts = near[~sending].ravel(), far[~sending].ravel()
            takes = self._network.takes(rank, kind, blocks * self._unit, operands, *parts)
        if sending.any():
            mine = np.flatnonzero(sending[owner])
            before = int((~sending).sum())
            task = ((owner[mine] - before)[:, None] * count + ranks).ravel()
            rank = np.tile(ranks, int(sending.sum()))
            blocks = np.repeat(forms[sending, 2], count)
            turns = np.repeat(turn[mine], count)
            order = np.repeat(np.arange(mine.size), count)
            sends = self._network.sends(rank, blocks * self._unit, task, partner[mine].ravel(), turns, order)
            lanes = partner[mine] % count
        return _Equipment(takes, sends, lanes)

    def _recent(self, number: int) -> dict[int, _Times]:
        rounds = range(max(0, number - NEAR), number)
        return {earlier: times for earlier in rounds if (times := self._times.get(earlier)) is not None}

    def _state(self, number: int) -> Array:
        """All times on which round `number` and later rounds depend."""
        times = [*self._recent(number).values(), *(self._arrived[taker].times for taker in sorted(self._arrived))]
        state = np.concatenate([part.ravel() for pair in times for part in pair])
        floor = state.min()
        return np.concatenate([state, *(np.maximum(r.free, floor).ravel() for r in self._network.resources)])

    def _marked(self, number: int, state: Array) -> _Mark:
        return _Mark(number, state, [resource.busy.copy() for resource in self._network.resources])

    def _is_over(self, earlier: int, number: int) -> bool:
        """Whether each rank had completed round `earlier` when the rank began round `number`."""
        times = self._times.get(earlier)
        return times is None or bool((times.last.max(axis=0) <= self._times[number].first.max(axis=0)).all())

    def _are_in(self, number: int) -> bool:
        """Whether all early messages had arrived before any rank began round `number`."""
        return self._early_end <= float(self._times[number].first.min())

    def _skip(self, number: int, length: int, times: int, step: float, mark: _Mark) -> None:
        """Skip `times` repetitions, each of which has `length` rounds and takes `step` seconds.

        `number` is the first round that is skipped. `mark` has the times one repetition earlier.
        """
        move, on = times * step, times * length
        moved = {earlier + on: done.later(move) for earlier, done in self._recent(number).items()}
        self._times.update(moved)
        self._arrived = {taker + on: _Arrivals(there, due.later(move)) for taker, (there, due) in self._arrived.items()}
        for resource, before in zip(self._network.resources, mark.busy, strict=True):
            resource.free += move
            resource.busy += times * (resource.busy - before)
        self.end = max(self.end, *(float(later.last.max()) for later in moved.values()))


def _latest(place: Array, begun: Array, ended: Array) -> tuple[Array, Array, Array]:
    """The places without repetitions, in ascending order, and the latest times of each."""
    order = np.argsort(place, kind="stable")
    place = place[order]
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    return place[begins], np.maximum.reduceat(begun[order], begins), np.maximum.reduceat(ended[order], begins)


def _joined(one: _Arrivals, other: _Arrivals) -> _Arrivals:
    there = np.union1d(one.there, other.there)
    found = _Times(*np.zeros((2, there.size, one.times.first.shape[1])))
    for part in (one, other):
        at = np.searchsorted(there, part.there)
        found.first[at] = np.maximum(found.first[at], part.times.first)
        found.last[at] = np.maximum(found.last[at], part.times.last)
    return _Arrivals(there, found)
