"""Possible orders of the steps of a group.

Invariant: this is the strictest executor. Links buffer nothing: a message moves when its sender and its receiver have
both reached it. A step is reached when its dependencies are complete and it is the first unfinished step of all its
queues: one for each peer and direction, one for sends to several peers, one for local steps. A send is complete when
all its peers have received it; a reduction receives all its messages at once.

A group that completes here also completes in slices over real links: there every step may start earlier, and everything
that is possible here is possible there too.
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
    """A group and its data dependencies. `waits[n]` are the steps on whose data step n depends."""

    def __init__(self, group: Group, in_place: bool = False) -> None:
        self.group = group
        self.waits: list[list[int]] = []
        for schedule, start in zip(group.schedules, group.start, strict=True):
            for found in dependencies(schedule, in_place):
                self.waits.append([start + dependency.step for dependency in found])
        self._after: list[list[int]] = [[] for _ in group.steps]
        for n, (waits, behind) in enumerate(zip(self.waits, group.behind, strict=True)):
            for before in waits:
                self._after[before].append(n)
            for before in behind:
                self._after[before].append(n)

    def events(self, random: Random | None = None) -> Iterator[int]:
        """The steps other than sends, in a possible order; sends happen together with the steps that receive them.

        The caller performs a step before it requests the next. With `random` the order differs each time.
        VerificationError if it ends in a deadlock.
        """
        group, after = self.group, self._after
        takers, givers = group.takers, group.givers
        # How many conditions each step waits for, the beginning included; and how many peers have not received a send
        # yet, or -1 for a complete step.
        missing = [1 + len(w) + len(b) + len(g) for w, b, g in zip(self.waits, group.behind, givers, strict=True)]
        untaken = [len(t) for t in takers]
        possible: list[int] = []

        def happened(waiting: Iterable[int]) -> None:
            """Something happened that these waited for."""
            pending = list(waiting)
            while pending:
                n = pending.pop()
                missing[n] -= 1
                if missing[n] == 0:
                    if takers[n]:
                        pending += takers[n]  # come to: the message can be seen
                    else:
                        possible.append(n)

        happened(range(len(missing)))
        while possible:
            if random is not None:
                at = random.randrange(len(possible))
                possible[at], possible[-1] = possible[-1], possible[at]
            n = possible.pop()
            yield n
            untaken[n] = -1
            for giver in givers[n]:
                untaken[giver] -= 1
                if untaken[giver] == 0:
                    untaken[giver] = -1
                    happened(after[giver])
            happened(after[n])
        complete = [state < 0 for state in untaken]
        if not all(complete):
            self._report_deadlock(complete)

    def rounds(self) -> list[int]:
        """For each step its round, from 1: the longest chain of messages that leads to it.

        A message is one round after the dependencies of its sender and its receiver; local steps and queues cost
        nothing.
        """
        group = self.group
        result = [0] * len(group.steps)
        for n in self.events():
            givers = group.givers[n]
            data = queue = 0
            for end in (*givers, n):
                for before in self.waits[end]:
                    data = max(data, result[before])
                for before in group.behind[end]:
                    queue = max(queue, result[before])
            result[n] = max(data + (1 if givers else 0), queue)
            for giver in givers:
                result[giver] = max(result[giver], result[n])
        return result

    def _report_deadlock(self, complete: list[bool]) -> NoReturn:
        """Follow the dependencies to the cycle, and raise an error that shows it."""
        group = self.group

        def before(n: int) -> list[int]:
            return [b for b in (*self.waits[n], *group.behind[n]) if not complete[b]]

        def waits_for(n: int) -> int:
            if before(n):
                return before(n)[0]
            if group.takers[n]:
                return next(taker for taker in group.takers[n] if not complete[taker])
            return next(giver for giver in group.givers[n] if before(giver))

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
