"""All ranks' schedules together, with every message matched to the step that receives it.

Invariant: messages are matched without running anything, because messages from one sender to one receiver keep their
order. Nothing here depends on the buffers that steps use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from collectives.schedule.check import fail, peers_of
from collectives.schedule.form import Chunk, Schedule, Send, Step

_SEVERAL = -1  # the queue of sends to several peers; 2 * peer and 2 * peer + 1 are the queues to and from a peer
_LOCAL = -2


class Group:
    """The schedules (lists of steps) of all ranks of a group, with each send matched to the steps that receive it.

    Steps of all ranks have consecutive numbers: `start[rank] + i` is step i of that rank. `rank_of`, `steps`,
    `previous`, `receives` and `sends` have one entry for each step n:

    - `previous[n]`: the steps just before step n in the queues that contain it. A rank has a queue for each peer and
      direction, one for sends to several peers, and one for local steps.
    - `receives[n]`: the steps that receive the message of send n
    - `sends[n]`: the sends whose messages step n receives, in the order in which the step lists its peers

    Raises VerificationError if a send or receive has no match.
    """

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.schedules = tuple(schedules)
        self.start: list[int] = []
        self.rank_of: list[int] = []
        self.steps: list[Step] = []
        self.previous: list[list[int]] = []
        self._sources: list[tuple[int, ...]] = []  # the ranks whose messages a step receives
        for schedule in self.schedules:
            self._add(schedule)
        self.receives: list[list[int]] = [[] for _ in self.steps]
        self.sends: list[list[int]] = [[] for _ in self.steps]
        self._match()

    def sent(self, number: int) -> Chunk:
        """Returns the chunk (consecutive blocks of a buffer) that step `number` sends. This step has to be a send."""
        step = self.steps[number]
        assert isinstance(step, Send)
        return step.chunk

    def fail(self, number: int, problem: str) -> NoReturn:
        """Raises VerificationError about step `number` of the group's schedules; `problem` says what is wrong."""
        rank = self.rank_of[number]
        fail(self.schedules[rank], problem, number - self.start[rank])

    def _add(self, schedule: Schedule) -> None:
        self.start.append(len(self.steps))
        last: dict[int, int] = {}  # queue -> the step that was added to it last
        for number, step in enumerate(schedule.steps, len(self.steps)):
            sources: tuple[int, ...] = ()
            if isinstance(step, Send):
                queues = [2 * peer for peer in step.peers]
                if len(queues) > 1:
                    queues.append(_SEVERAL)
            else:
                sources = peers_of(step)
                queues = [2 * peer + 1 for peer in sources] or [_LOCAL]
            self._sources.append(sources)
            self.previous.append([last[q] for q in queues if q in last])
            for queue in queues:
                last[queue] = number
        self.steps += schedule.steps
        self.rank_of += [schedule.rank] * len(schedule.steps)

    def _match(self) -> None:
        sent: dict[tuple[int, int], list[int]] = {}
        for n, step in enumerate(self.steps):
            if isinstance(step, Send):
                for peer in step.peers:
                    sent.setdefault((self.rank_of[n], peer), []).append(n)
        taken: dict[tuple[int, int], int] = {}
        for n, sources in enumerate(self._sources):
            rank = self.rank_of[n]
            for peer in sources:
                number = taken.get((peer, rank), 0)
                messages = sent.get((peer, rank), [])
                if number == len(messages):
                    self.fail(n, f"receives more than the {len(messages)} messages that rank {peer} sends to it")
                taken[peer, rank] = number + 1
                self.receives[messages[number]].append(n)
                self.sends[n].append(messages[number])
        for (rank, peer), messages in sent.items():
            number = taken.get((rank, peer), 0)
            if number < len(messages):
                self.fail(messages[number], f"sends message {number + 1} to rank {peer}, which receives only {number}")
