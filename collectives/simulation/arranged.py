"""Arranges the steps that all ranks of a group have in common into rounds, and finds rounds that are repeated.

Invariant: a step is in the round after the last round that it waits for or gets messages from, as in module `everyone`.
Nothing here depends on costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from collectives.simulation.everyone import MismatchError
from collectives.simulation.families import Family
from collectives.simulation.relations import Array, Ranks
from collectives.simulation.sequences import folded, numbered, starts, turns
from collectives.simulation.steps import SEND
from collectives.simulation.waits import Waits

NEAR: Final = 16  # rounds; steps and messages of earlier ones are over before a step waits for them; this is checked
_PERIODS: Final = (1, 2, 3, 4, 6, 8)


class Repetitions(NamedTuple):
    """For each round, the sequence of repeated rounds that contains the round.

    `period`: the number of rounds after which the sequence repeats itself. `begin`: the first round of the sequence.
    `until`: the round after the last round of the sequence.
    """

    period: Array
    begin: Array
    until: Array


class Links(NamedTuple):
    """What connects tasks of different rounds: waits or messages, an item for each in the order of rounds.

    For messages, `source` is the position among the messages of the round; `other` is the round of the task that
    receives the message, and `place` this task's place in its round. For waits, `place` is that of the task that waits;
    `other` is the round of the task for which it waits, and `source` the other task's place in its round.

    Links of one round with the same `other` are a group. `groups`: the first group of each round. `bounds`: where each
    group begins. `plain`: of each group, whether `place` increases from item to item. One more item follows the last of
    `groups` and `bounds`.
    """

    round: Array
    other: Array
    source: Array
    place: Array
    groups: list[int]
    bounds: list[int]
    plain: list[bool]

    def of(self, number: int) -> Iterator[tuple[int, slice, bool]]:
        """The groups of round `number`: their other round, their items, and whether they are plain."""
        for group in range(self.groups[number], self.groups[number + 1]):
            items = slice(self.bounds[group], self.bounds[group + 1])
            yield int(self.other[items.start]), items, self.plain[group]


class Ends(NamedTuple):
    """An item for each peer of each task, round by round, in the order of the tasks in the round.

    `place`: the task's place in the round. `turn`: the number among the task's peers. `constant`: how the peer follows
    from the rank. `begins`: where the items of each round begin.
    """

    begins: Array
    place: Array
    turn: Array
    constant: Array


class Arranged:
    """The rounds of a group in which all ranks have the same steps.

    `family`: the ranks, with their steps. The steps are called tasks. Sizes of messages are in blocks, the parts of a
    buffer.

    - `forms`: for each task, round by round, a row (kind, number of peers, number of blocks, number of operands)
    - `begins`: where the tasks of each round begin; the tasks that receive or copy come first, then the sends
    - `looks`: a number for each round; rounds with the same number have the same tasks and links. Links are the same if
      they are to the same places, the same number of rounds earlier or later.
    """

    def __init__(self, family: Family, ranks: Ranks) -> None:
        assert family.whole is not None
        forms, waits = family.outline.forms, family.outline.waits
        self.ranks, self.relation = ranks, family.whole
        owner, turn = turns(forms[:, 1])
        sender, taker = self._match(forms[owner, 0] == SEND, family.constants)
        round_of = _rounds(len(forms), waits, owner[sender], owner[taker])
        order = np.lexsort((forms[:, 0] == SEND, round_of))
        self.forms, self._round = forms[order], round_of[order]
        self.begins = starts(self._round, int(self._round.max(initial=-1)) + 1)
        self._place = np.arange(order.size) - self.begins[self._round]
        now = np.empty(order.size, np.int64)  # where each task is in this order
        now[order] = np.arange(order.size)
        self.ends = self._ends(now[owner], turn, family.constants)
        task, other = now[waits.task], now[waits.other]
        order = np.lexsort((self._place[task], other, self._round[task]))
        task, other, self.progress = task[order], other[order], waits.progress[order]
        self.waits = self._links(task, self._round[other], self._place[other], self._place[task])
        position, task, other = self._positions(now[owner], turn, sender), now[owner[sender]], now[owner[taker]]
        order = np.lexsort((position, other, self._round[task]))
        task, other, position = task[order], other[order], position[order]
        self.messages = self._links(task, self._round[other], position, self._place[other])
        self.looks = self._signatures()
        self.repetitions = self._repetitions()

    @property
    def count(self) -> int:
        """The number of rounds."""
        return self.begins.size - 1

    @property
    def rounds(self) -> int:
        """The number of rounds in which messages are sent."""
        return int(np.unique(self._round[self.forms[:, 0] == SEND]).size)

    @property
    def sent(self) -> float:
        """Blocks that a rank sends."""
        sends = self.forms[self.forms[:, 0] == SEND]
        return float((sends[:, 1] * sends[:, 2]).sum())

    @property
    def largest(self) -> int:
        """The number of messages that a rank sends or receives in the round with the most messages."""
        return int(np.diff(self.ends.begins).max(initial=0))

    def tasks(self, number: int) -> slice:
        """The tasks of round `number`."""
        return slice(int(self.begins[number]), int(self.begins[number + 1]))

    def _match(self, sends: Array, constants: Array) -> tuple[Array, Array]:
        """Match both ends of each message: pairs of an item of a send and of a receiving task, by their positions."""
        giving, taking = np.flatnonzero(sends), np.flatnonzero(~sends)
        back = self.ranks.back(self.relation, constants[taking])
        giving = giving[np.argsort(constants[giving], kind="stable")]
        order = np.argsort(back, kind="stable")
        if not np.array_equal(constants[giving], back[order]):
            raise MismatchError("messages have no taker, or steps no message")
        return giving, taking[order]

    def _ends(self, task: Array, turn: Array, constants: Array) -> Ends:
        order = np.lexsort((turn, task))
        task = task[order]
        return Ends(starts(self._round[task], self.count), self._place[task], turn[order], constants[order])

    def _positions(self, task: Array, turn: Array, sender: Array) -> Array:
        """The position of each message among those of its round. `sender`: the item of its send in the other arrays."""
        order = np.lexsort((turn[sender], task[sender]))
        number = self._round[task[sender[order]]]
        found = np.empty(sender.size, np.int64)
        found[order] = np.arange(sender.size) - starts(number, self.count)[number]
        return found

    def _links(self, task: Array, other: Array, source: Array, place: Array) -> Links:
        """Links of tasks, in the order of rounds, then of the other rounds."""
        number = self._round[task]
        new = (np.diff(number, prepend=-1) != 0) | (np.diff(other, prepend=-1) != 0)
        bounds = np.flatnonzero(new)
        plain = np.logical_and.reduceat(new | (np.diff(place, prepend=-1) > 0), bounds) if bounds.size else new
        groups = starts(number[bounds], self.count).tolist()
        return Links(number, other, source, place, groups, [*bounds.tolist(), task.size], plain.tolist())

    def _signatures(self) -> Array:
        parts = [folded(numbered(*self.forms.T), np.diff(self.begins))]
        ends, messages, waits = self.ends, self.messages, self.waits
        parts.append(folded(numbered(ends.place, ends.turn, ends.constant), np.diff(ends.begins)))
        lengths = np.bincount(messages.round, minlength=self.count)
        away = messages.other - messages.round
        parts.append(folded(numbered(away, messages.source, messages.place), lengths))
        lengths = np.bincount(waits.round, minlength=self.count)
        away = waits.round - waits.other
        near = away <= NEAR  # of other waits only the number counts
        away, source, progress = (np.where(near, part, -1) for part in (away, waits.source, self.progress))
        order = np.lexsort((waits.place, near, waits.round))
        parts.append(folded(numbered(away, waits.place, source, progress)[order], lengths))
        return numbered(*parts)

    def _repetitions(self) -> Repetitions:
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
        return Repetitions(period, np.maximum.accumulate(np.where(new, numbers, 0)), until)


def _rounds(count: int, waits: Waits, sender: Array, taker: Array) -> Array:
    """The round of each task: one more than the rounds of all tasks that it waits for or gets messages from."""
    source, target = np.concatenate([waits.other, sender]), np.concatenate([waits.task, taker])
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    rounds = [0] * count
    if (source < target).all():  # the order of the list is one in which the tasks could run
        for earlier, task in zip(source.tolist(), target.tolist(), strict=True):
            if rounds[task] <= rounds[earlier]:
                rounds[task] = rounds[earlier] + 1
        return np.array(rounds, np.int64)
    missing = np.bincount(target, minlength=count).tolist()
    after: list[list[int]] = [[] for _ in rounds]
    for earlier, task in zip(source.tolist(), target.tolist(), strict=True):
        after[earlier].append(task)
    possible = [task for task, left in enumerate(missing) if left == 0]
    for earlier in possible:  # grows during the loop
        for task in after[earlier]:
            rounds[task] = max(rounds[task], rounds[earlier] + 1)
            missing[task] -= 1
            if missing[task] == 0:
                possible.append(task)
    if len(possible) < count:
        raise MismatchError("steps wait for each other")
    return np.array(rounds, np.int64)
