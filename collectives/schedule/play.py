"""Simulates in which orders the steps of all ranks can happen, without data or communication.

Invariant: no real executor is stricter than this one. Links buffer nothing: a message moves when its send and the step
that receives it are both reached. A step is reached when its dependencies are complete and it is the first unfinished
step of all its queues: one for each peer and direction, one for sends to several peers, one for local steps. A send is
complete when all its peers have received it; a reduction receives all its messages at once.

A group that completes here also completes over real links, which move data in slices: every order that is possible here
is possible over real links too, and steps there may start even earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import NoReturn

from collectives.schedule.check import VerificationError
from collectives.schedule.dependencies import dependencies
from collectives.schedule.group import Group
from collectives.schedule.text import excerpt, step_text


class Play:
    """Computes in which orders the steps of all ranks of a group can happen.

    `group`: the steps, with their messages matched; it must not change afterwards, because tables are computed from it.
    `waits[n]` are the steps of the same rank that step n waits for, because both use the same data.
    """

    def __init__(self, group: Group, in_place: bool = False) -> None:
        self.group = group
        self.waits: list[list[int]] = []
        for schedule, start in zip(group.schedules, group.start, strict=True):
            for found in dependencies(schedule, in_place):
                self.waits.append([start + dependency.step for dependency in found])
        # For each step the steps that wait for it, and those that receive its message, in reverse: lists are popped at
        # the end.
        self._after: list[list[int]] = [[] for _ in group.steps]
        for n in reversed(range(len(group.steps))):
            for before in reversed(group.previous[n]):
                self._after[before].append(n)
            for before in reversed(self.waits[n]):
                self._after[before].append(n)
        self._receives = [receives[::-1] if len(receives) > 1 else receives for receives in group.receives]
        self._order: list[int] | None = None  # the order of `events` without `random`, once it is complete
        # The initial state: how many conditions each step waits for, and the steps that can run.
        conditions = zip(self.waits, group.previous, group.sends, strict=True)
        self._missing = [1 + len(waits) + len(previous) + len(sends) for waits, previous, sends in conditions]
        self._possible: list[int] = []
        self._happened(range(len(group.steps) - 1, -1, -1), self._missing, self._possible)

    def _happened(self, waiting: Iterable[int], missing: list[int], possible: list[int]) -> None:
        """Count one more condition as met for each step in `waiting`; append steps that can run now to `possible`.

        `missing[n]` is the number of conditions that step n still waits for.
        """
        receives = self._receives
        for n in waiting:
            missing[n] -= 1
            if missing[n] == 0:
                if receives[n]:
                    for receive in receives[n]:  # the send is reached: its receivers can see the message
                        missing[receive] -= 1
                        if missing[receive] == 0:
                            possible.append(receive)
                else:
                    possible.append(n)

    def events(self, random: Random | None = None) -> Iterator[int]:
        """Yields the numbers of all steps except sends, in one order in which they can happen.

        A send is not listed, because it happens together with the steps that receive its messages. The caller performs
        each step before it requests the next number. With `random`, the order is chosen at random. Raises
        VerificationError if the steps end in a deadlock.
        """
        if random is None and self._order is not None:
            yield from self._order
            return
        after, sends, happened = self._after, self.group.sends, self._happened
        missing, possible = self._missing.copy(), self._possible.copy()
        untaken = list(map(len, self._receives))  # how many peers have not received a send yet; -1 for a complete step
        order: list[int] = []
        while possible:
            if random is not None:
                at = random.randrange(len(possible))
                possible[at], possible[-1] = possible[-1], possible[at]
            n = possible.pop()
            yield n
            order.append(n)
            untaken[n] = -1
            for send in sends[n]:
                untaken[send] -= 1
                if untaken[send] == 0:
                    untaken[send] = -1
                    happened(after[send], missing, possible)
            happened(after[n], missing, possible)
        if max(untaken, default=-1) >= 0:
            self._report_deadlock([state < 0 for state in untaken])
        if random is None:
            self._order = order

    def rounds(self) -> list[int]:
        """Returns each step's round: the number of messages in the longest chain of dependencies up to this step.

        The send and the receive of a message depend on the data of earlier steps. The message's round is one higher
        than the highest round of these steps. Local steps add no round. Waiting for an earlier message to or from the
        same peer adds no round either.
        """
        waits, previous = self.waits, self.group.previous
        result = [0] * len(waits)
        for n in self.events():
            sends = self.group.sends[n]
            data = queue = 0
            for end in (*sends, n):
                for before in waits[end]:
                    data = max(data, result[before])
                for before in previous[end]:
                    queue = max(queue, result[before])
            result[n] = max(data + 1 if sends else data, queue)
            for send in sends:
                result[send] = max(result[send], result[n])
        return result

    def _report_deadlock(self, complete: list[bool]) -> NoReturn:
        """Find a cycle of incomplete steps that wait for each other, and raise an error that shows the cycle."""
        group = self.group

        def before(n: int) -> list[int]:
            return [b for b in (*self.waits[n], *group.previous[n]) if not complete[b]]

        def waits_for(n: int) -> int:
            if before(n):
                return before(n)[0]
            if group.receives[n]:
                return next(receive for receive in group.receives[n] if not complete[receive])
            return next(send for send in group.sends[n] if before(send))

        def name(n: int) -> str:
            return f"  rank {group.rank_of[n]} step {n - group.start[group.rank_of[n]]} ({step_text(group.steps[n])})"

        trail: dict[int, int] = {}
        n = complete.index(False)
        while n not in trail:
            trail[n] = len(trail)
            n = waits_for(n)
        cycle = list(trail)[trail[n] :]
        rank = group.rank_of[n]
        schedule, step = group.schedules[rank], n - group.start[rank]
        raise VerificationError(
            "deadlock: each of these waits for the next\n" + "\n".join(name(m) for m in [*cycle, n]),
            schedule.collective,
            schedule.algorithm,
            schedule.size,
            schedule.root,
            rank,
            step,
            excerpt(schedule, step),
        )
