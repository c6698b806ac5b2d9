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

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from collectives.simulation.everyone import MismatchError, Played
from collectives.simulation.network import Network, Sends, Takes
from collectives.simulation.outline import SEND, Family
from collectives.simulation.relations import Array, Ranks

_NEAR: Final = 16  # rounds; steps and messages of earlier ones are over before a step waits for them; this is checked
_PERIODS: Final = (1, 2, 3, 4, 6, 8)
_SAME: Final = 1e-9
_KEPT: Final = 1 << 24  # times; if there are more, those of early rounds are dropped


class _Times(NamedTuple):
    """For each lane (simulated rank), when a step's first slice is done, and when its last byte is done."""

    first: Array
    last: Array


class _Repetitions(NamedTuple):
    """For each round, the sequence of repeated rounds that contains the round.

    `period`: the number of rounds after which the sequence repeats itself. `begin`: the first round of the sequence.
    `until`: the round after the last round of the sequence.
    """

    period: Array
    begin: Array
    until: Array


@dataclass(slots=True, eq=False)
class _Equipment:
    """The steps of a round in the form that `network` simulates; rounds with the same steps share it."""

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

    `family`: the ranks, with their steps. `size`: the number of ranks. Sizes of messages are in blocks, the parts of a
    buffer.
    """

    def __init__(self, family: Family, ranks: Ranks, lanes: int) -> None:
        assert family.whole is not None
        outline = family.outline
        self.ranks, self.lanes, self.relation = ranks, lanes, family.whole
        self.shapes, self.waits = outline.shapes, outline.waits
        bounds = [0]
        for shape in self.shapes:
            bounds.append(bounds[-1] + shape.peers)
        constants = family.constants.tolist()
        self.constants = [constants[a:b] for a, b in pairwise(bounds)]
        self.takers = self._match()
        self.round_of = self._order()
        self.rounds: list[list[int]] = [[] for _ in range(max(self.round_of, default=-1) + 1)]
        self.place = [0] * len(self.shapes)
        for number in sorted(range(len(self.shapes)), key=lambda n: self.shapes[n].kind == SEND):
            tasks = self.rounds[self.round_of[number]]
            self.place[number] = len(tasks)  # steps that receive or copy first, then sends
            tasks.append(number)
        self.looks = self._signatures()
        self.repetitions = self._repetitions()

    @property
    def sent(self) -> float:
        """Blocks that a rank sends."""
        return float(sum(shape.blocks * shape.peers for shape in self.shapes if shape.kind == SEND))

    @property
    def largest(self) -> int:
        """The number of messages in the round with the most messages."""
        return max((sum(self.shapes[t].peers for t in tasks) for tasks in self.rounds), default=0) * self.lanes

    def play(self, network: Network, unit: float) -> Played:
        """Simulates the steps of the ranks on `network`; returns the seconds and the number of rounds of messages.

        `unit`: the size of a block in bytes.
        """
        run = _Run(self, network, unit)
        number, end = 0, len(self.rounds)
        while number < end:
            run.round(number)
            number = run.forward(number + 1)
        rounds = sum(any(self.shapes[t].kind == SEND for t in tasks) for tasks in self.rounds)
        return Played(run.end, rounds)

    def _match(self) -> list[list[int]]:
        """For each send, the steps that receive its messages."""
        queues: dict[int, deque[int]] = defaultdict(deque)
        for number, shape in enumerate(self.shapes):
            if shape.kind != SEND:
                for constant in self.constants[number]:
                    queues[constant].append(number)
        takers: list[list[int]] = []
        for number, shape in enumerate(self.shapes):
            found: list[int] = []
            for constant in self.constants[number] if shape.kind == SEND else ():
                queue = queues[self.ranks.back(self.relation, constant)]
                if not queue:
                    raise MismatchError("messages have no taker")
                found.append(queue.popleft())
            takers.append(found)
        if any(queues.values()):
            raise MismatchError("steps have no message")
        return takers

    def _order(self) -> list[int]:
        """The round of each step."""
        missing = [len(waits) for waits in self.waits]
        after: list[list[int]] = [list(takers) for takers in self.takers]
        for takers in self.takers:
            for taker in takers:
                missing[taker] += 1
        for number, waits in enumerate(self.waits):
            for other, _ in waits:
                after[other].append(number)
        rounds = [0] * len(missing)
        possible = [number for number, count in enumerate(missing) if count == 0]
        for number in possible:  # grows during the loop
            following = rounds[number] + 1
            for other in after[number]:
                rounds[other] = max(rounds[other], following)
                missing[other] -= 1
                if missing[other] == 0:
                    possible.append(other)
        if len(possible) < len(missing):
            raise MismatchError("steps wait for each other")
        return rounds

    def _signatures(self) -> Array:
        """A number for each round; rounds with the same number have the same steps and dependencies.

        Dependencies are the same if they are on the same steps, the same number of rounds earlier.
        """
        known: dict[object, int] = {}
        looks = []
        for number, tasks in enumerate(self.rounds):
            look = []
            for task in tasks:
                waits = [
                    (ago, self.place[other], progress) if (ago := number - self.round_of[other]) <= _NEAR else None
                    for other, progress in self.waits[task]
                ]
                to = [(self.round_of[taker] - number, self.place[taker]) for taker in self.takers[task]]
                look.append((self.shapes[task], tuple(self.constants[task]), tuple(waits), tuple(to)))
            looks.append(known.setdefault(tuple(look), len(known)))
        return np.array(looks, np.int64)

    def _repetitions(self) -> _Repetitions:
        count = self.looks.size
        period, until = np.ones(count, np.int64), np.zeros(count, np.int64)
        numbers = np.arange(count)
        for length in _PERIODS:
            if length >= count:
                break
            differs = np.flatnonzero(self.looks[length:] != self.looks[:-length]) + length
            end = np.append(differs, count)[np.searchsorted(differs, numbers + length)]
            longer = end > until
            period[longer], until[longer] = length, end[longer]
        new = (np.diff(until, prepend=-1) != 0) | (np.diff(period, prepend=0) != 0)
        return _Repetitions(period, np.maximum.accumulate(np.where(new, numbers, 0)), until)


class _Run:
    """One simulation of the rounds, and the times so far."""

    def __init__(self, lanes: Lanes, network: Network, unit: float) -> None:
        self._all, self._network, self._unit = lanes, network, unit
        self._equipment: dict[int, _Equipment] = {}
        self._times: dict[int, _Times] = {}
        self._arrived: dict[int, _Times] = {}  # by the step that receives
        self._early: dict[int, _Times] = {}  # the same, of messages that were sent more than _NEAR rounds before
        self._early_end = 0.0
        self._mark: _Mark | None = None
        self._patience = 0
        self._zero = np.zeros(lanes.lanes)
        self._frugal = len(lanes.shapes) * lanes.lanes > _KEPT
        self.end = 0.0

    def round(self, number: int) -> None:
        """Play one round."""
        tasks, look, count = self._all.rounds[number], int(self._all.looks[number]), self._all.lanes
        if look not in self._equipment:
            self._equipment[look] = self._equip(tasks)
        equipment = self._equipment[look]
        ready = [self._ready(task) for task in tasks]
        first, last = np.concatenate([r.first for r in ready]), np.concatenate([r.last for r in ready])
        taking = 0
        if equipment.takes is not None:
            taking = equipment.takes.core.size
            first[:taking], last[:taking] = self._network.perform(equipment.takes, first[:taking], last[:taking])
        if equipment.sends is not None:
            begun, ended, first[taking:], last[taking:] = self._network.depart(
                equipment.sends, first[taking:], last[taking:]
            )
            self._deliver(number, equipment.lanes, begun.reshape(-1, count), ended.reshape(-1, count))
        for place, task in enumerate(tasks):
            self._times[task] = _Times(first[place * count :][:count], last[place * count :][:count])
        self.end = max(self.end, float(last.max()))
        if self._frugal and number >= _NEAR and self._is_over(number - _NEAR, number):
            for task in self._all.rounds[number - _NEAR]:
                self._times.pop(task, None)

    def forward(self, number: int) -> int:
        """Returns the number of the round of messages to simulate next: `number`, or a later round.

        Rounds that repeat earlier rounds are skipped: their times can be computed from the times of the earlier rounds.
        """
        if number >= len(self._all.rounds):
            return number
        period, begin, until = (int(column[number]) for column in self._all.repetitions)
        if until - number < 8 * period or number - begin < _NEAR + period or not self._are_in(number - 1):
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
            if times and step - float(moved.min()) <= _SAME * step and self._is_over(number - _NEAR, number - 1):
                self._skip(number, length, times, step, mark)
                self._mark = None
                return number + times * length
        if length >= self._patience:
            self._patience *= 2
            self._mark = self._marked(number, state)
        return number

    def _ready(self, task: int) -> _Times:
        first, last = self._arrived.pop(task, None) or (self._zero, self._zero)
        if (early := self._early.pop(task, None)) is not None:
            first, last = np.maximum(first, early.first), np.maximum(last, early.last)
        for other, progress in self._all.waits[task]:
            if (times := self._times.get(other)) is not None:
                if progress >= 0:
                    first = np.maximum(first, times.first + progress * (times.last - times.first))
                last = np.maximum(last, times.last)
        return _Times(first, last)

    def _deliver(self, number: int, lanes: Array, begun: Array, ended: Array) -> None:
        """Note when the messages of round `number` arrive; `begun` and `ended` have a row for each message."""
        starts, ends = np.empty_like(begun), np.empty_like(ended)
        np.put_along_axis(starts, lanes, begun, axis=1)  # each lane sends one of a row's messages, and gets one
        np.put_along_axis(ends, lanes, ended, axis=1)
        round_of = self._all.round_of
        takers = (taker for task in self._all.rounds[number] for taker in self._all.takers[task])
        early: list[int] = []
        for message, taker in enumerate(takers):
            arrived = self._arrived
            if round_of[taker] - number > _NEAR:
                arrived = self._early
                early.append(message)
            times = _Times(starts[message], ends[message])
            if (before := arrived.get(taker)) is not None:
                times = _Times(np.maximum(before.first, times.first), np.maximum(before.last, times.last))
            arrived[taker] = times
        if early:
            self._early_end = max(self._early_end, float(ends[early].max()))

    def _equip(self, tasks: list[int]) -> _Equipment:
        everything, ranks = self._all, np.arange(self._all.lanes)
        count = ranks.size
        shapes = np.array([everything.shapes[task] for task in tasks], np.int64)
        sending = shapes[:, 0] == SEND
        pairs = [(i, turn, c) for i, task in enumerate(tasks) for turn, c in enumerate(everything.constants[task])]
        owner, turn, constant = np.array(pairs, np.int64).reshape(-1, 3).T
        partner = everything.ranks.peers(everything.relation, constant[:, None], ranks)
        takes = sends = None
        lanes = partner[:0]
        if not sending.all():
            mine = np.flatnonzero(~sending[owner])
            near, far = np.zeros((2, len(tasks), count))
            inside = self._network.is_inside(ranks, partner[mine])
            np.add.at(near, owner[mine], inside)
            np.add.at(far, owner[mine], ~inside)
            kind, _, blocks, operands = (np.repeat(column, count) for column in shapes[~sending].T)
            rank = np.tile(ranks, int((~sending).sum()))
            parts = near[~sending].ravel(), far[~sending].ravel()
            takes = self._network.takes(rank, kind, blocks * self._unit, operands, *parts)
        if sending.any():
            mine = np.flatnonzero(sending[owner])
            before = int((~sending).sum())
            task = ((owner[mine] - before)[:, None] * count + ranks).ravel()
            rank = np.tile(ranks, int(sending.sum()))
            blocks = np.repeat(shapes[sending, 2], count)
            turns = np.repeat(turn[mine], count)
            order = np.repeat(np.arange(mine.size), count)
            sends = self._network.sends(rank, blocks * self._unit, task, partner[mine].ravel(), turns, order)
            lanes = partner[mine] % count
        return _Equipment(takes, sends, lanes)

    def _recent(self, number: int) -> list[_Times]:
        rounds = self._all.rounds[number - _NEAR : number]
        return [self._times[task] for tasks in rounds for task in tasks if task in self._times]

    def _state(self, number: int) -> Array:
        """All times on which round `number` and later rounds depend."""
        times = [*self._recent(number), *(self._arrived[task] for task in sorted(self._arrived))]
        state = np.concatenate([part for pair in times for part in pair])
        floor = state.min()
        return np.concatenate([state, *(np.maximum(r.free, floor).ravel() for r in self._network.resources)])

    def _marked(self, number: int, state: Array) -> _Mark:
        return _Mark(number, state, [resource.busy.copy() for resource in self._network.resources])

    def _is_over(self, earlier: int, number: int) -> bool:
        """Whether each rank had completed round `earlier` when the rank began round `number`."""
        rounds = self._all.rounds
        last = [self._times[task].last for task in rounds[earlier] if task in self._times]
        first = [self._times[task].first for task in rounds[number]]
        return not last or bool((np.max(last, axis=0) <= np.max(first, axis=0)).all())

    def _are_in(self, number: int) -> bool:
        """Whether all early messages had arrived before any rank began round `number`."""
        begun = min(float(self._times[task].first.min()) for task in self._all.rounds[number])
        return self._early_end <= begun

    def _skip(self, number: int, length: int, times: int, step: float, mark: _Mark) -> None:
        """Skip `times` repetitions, each of which has `length` rounds and takes `step` seconds.

        `number` is the first round that is skipped. `mark` has the times one repetition earlier.
        """
        rounds, place, move, on = self._all.rounds, self._all.place, times * step, times * length

        def later(task: int) -> int:
            return rounds[self._all.round_of[task] + on][place[task]]

        moved = {
            task: pair for tasks in rounds[number - _NEAR : number] for task in tasks if (pair := self._times.get(task))
        }
        self._times.update({later(task): _Times(first + move, last + move) for task, (first, last) in moved.items()})
        self._arrived = {later(task): _Times(a + move, b + move) for task, (a, b) in self._arrived.items()}
        for resource, before in zip(self._network.resources, mark.busy, strict=True):
            resource.free += move
            resource.busy += times * (resource.busy - before)
        self.end = max(self.end, *(float(last.max()) + move for _, last in moved.values()))
