"""Arranges the steps that all ranks of a group have in common into rounds, and finds rounds that are repeated.

Invariant: a step is in the round after the last round that it waits for or gets messages from, as in module `everyone`.
Nothing here depends on costs.
"""

from __future__ import annotations

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
    """What connects tasks of different rounds, round by round, and for each round sorted by the other round.

    For messages, an item for each message: its position `row` among the messages of its round, and the round `other`
    and place `there` of the task that receives it. For waits, an item for each: the place `row` of the task that
    waits, and the round `other` and place `there` of the task for which it waits. `begins`: where the items of each
    round begin.
    """

    begins: Array
    row: Array
    other: Array
    there: Array


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
        self.waits, self.progress = self._links(
            now[waits.task], self._place[now[waits.task]], now[waits.other], waits.progress
        )
        row = np.empty(owner.size, np.int64)
        sends = sender[np.lexsort((turn[sender], now[owner[sender]]))]
        first = starts(self._round[now[owner[sends]]], self.count)
        row[sends] = np.arange(sends.size) - first[self._round[now[owner[sends]]]]
        self.messages, _ = self._links(now[owner[sender]], row[sender], now[owner[taker]], np.zeros(sender.size))
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

    def _links(self, task: Array, row: Array, other: Array, extra: Array) -> tuple[Links, Array]:
        """Links from tasks to the tasks `other`; also returns `extra` in the order of the links."""
        order = np.lexsort((row, other, self._round[task]))
        number, other = self._round[task[order]], other[order]
        begins = starts(number, self.count)
        return Links(begins, row[order], self._round[other], self._place[other]), extra[order]

    def _signatures(self) -> Array:
        parts = [folded(numbered(*self.forms.T), np.diff(self.begins))]
        lengths = np.diff(self.ends.begins)
        parts.append(folded(numbered(self.ends.place, self.ends.turn, self.ends.constant), lengths))
        lengths = np.diff(self.messages.begins)
        away = self.messages.other - np.repeat(np.arange(self.count), lengths)
        parts.append(folded(numbered(away, self.messages.row, self.messages.there), lengths))
        lengths = np.diff(self.waits.begins)
        number = np.repeat(np.arange(self.count), lengths)
        away = number - self.waits.other
        near = away <= NEAR  # of other waits only the number counts
        away, there, progress = (np.where(near, part, -1) for part in (away, self.waits.there, self.progress))
        order = np.lexsort((self.waits.row, near, number))
        parts.append(folded(numbered(away, self.waits.row, there, progress)[order], lengths))
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
