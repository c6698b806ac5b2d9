"""Schedules without the names of blocks, as arrays.

Invariant: an outline has all properties of a schedule on which the schedule's time depends: kinds of steps, peers,
numbers of blocks, dependencies.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from collectives.schedule.dependencies import accesses
from collectives.schedule.form import SCRATCH, Chunk, Schedule, Step
from collectives.simulation.relations import HOSTS, SHIFT, Array, Ranks
from collectives.simulation.sequences import turns
from collectives.simulation.steps import REDUCE, Steps
from collectives.simulation.waits import Waits, waits


class Outline:
    """One rank's steps in a collective, as numbers: kinds, sizes in blocks, peers, and which steps wait for which.

    Steps are sends, receives, reductions and copies. Which blocks they move is left out, because their time depends
    only on the number of blocks. `rank` and peers are counted from the root, so that the root is 0.

    - `forms`: for each step a row (kind, number of peers, number of blocks, number of operands)
    - `flat_peers`: the peers of all steps, step by step

    If the data of a message reaches the end of a buffer and continues at its start, the schedule has two sends for this
    message. With `whole`, the two sends count as one. `whole` also applies at the end of a part of the buffer that has
    one block for each host. `per_host` is the number of ranks on each host, if the algorithm depends on which ranks
    share a host, else 1.
    """

    def __init__(self, schedule: Schedule, whole: bool = True, per_host: int = 1) -> None:
        self.schedule = schedule
        self.ranks = Ranks(schedule.size, per_host)
        self.rank = (schedule.rank - schedule.root) % schedule.size
        steps = Steps(schedule)
        self.forms, self._accesses = steps.forms, steps.accesses
        self.flat_peers = self._in_order(steps)
        self._number = np.arange(len(self.forms))  # of each step: the task, one or more steps, that it is part of
        if whole and (parts := self._continued()):
            self._merge(np.array(parts))

    def _in_order(self, steps: Steps) -> Array:
        peers, order = steps.peer, np.arange(steps.peer.size)
        if self.schedule.root:
            peers = (peers - self.schedule.root) % self.schedule.size
        reduces = steps.forms[:, 0] == REDUCE
        if (steps.forms[reduces, 1] > 1).any():  # a reduction receives all messages at once, in any order
            distance = self.ranks.constants(HOSTS if self.ranks.even else SHIFT, self.rank, peers)
            order = np.where(reduces[steps.step], distance, order)
        ordered: Array = peers[np.lexsort((order, steps.step))]
        return ordered

    def _continued(self) -> list[int]:
        """The steps that are part of the same message as the step before."""
        kind, count = self.forms[:, 0], self.forms[:, 1]
        begin = np.cumsum(count) - count
        same = (kind[1:] == kind[:-1]) & (count[1:] == count[:-1]) & (count[1:] > 0)
        found = np.flatnonzero(same) + 1
        found = found[self.flat_peers[begin[found]] == self.flat_peers[begin[found - 1]]]
        steps, peers = self.schedule.steps, self.flat_peers
        return [
            number
            for number in found.tolist()
            if np.array_equal(peers[begin[number] :][: count[number]], peers[begin[number - 1] :][: count[number]])
            and self._goes_round(steps[number - 1], steps[number])
        ]

    def _goes_round(self, before: Step, step: Step) -> bool:
        """Whether `before` stops at the end of a buffer or part of it, and `step` continues at the start."""
        for ends, begins in zip(_all_chunks(before), _all_chunks(step), strict=False):
            if begins.buffer < SCRATCH and begins.buffer == ends.buffer and begins.first < ends.first:
                blocks = ends.first + ends.count - begins.first
                parts = {self.schedule.grid[ends.buffer], self.ranks.hosts if self.ranks.even else 0}
                if blocks in parts and begins.first % blocks == 0:
                    return True
        return False

    def _merge(self, parts: Array) -> None:
        """Count each of the steps `parts` as part of the step before."""
        owns = np.ones(len(self.forms), bool)
        owns[parts] = False
        owner, _ = turns(self.forms[:, 1])
        self.flat_peers = self.flat_peers[owns[owner]]
        self._number = np.cumsum(owns) - 1
        blocks = np.add.reduceat(self.forms[:, 2], np.flatnonzero(owns))
        self.forms = self.forms[owns]
        self.forms[:, 2] = blocks

    @cached_property
    def waits(self) -> Waits:
        """Which steps wait for which; steps that are one message have one number."""
        return waits(self._accesses, self._number, self.forms[:, 2])

    @cached_property
    def places(self) -> list[Array]:
        """The blocks that the steps use: arrays with rows (buffer, first block, number of blocks).

        In a buffer with one block for each rank, block 0 is the rank's own, and the other blocks are counted from block
        0. Each array counts in another way: by rank; by host, then local rank; by local rank, then host.
        """
        chunks = self._accesses.chunk
        size, rank = self.schedule.size, self.schedule.rank
        relative = np.isin(chunks[:, 0], [b for b, blocks in enumerate(self.schedule.grid) if blocks == size])
        blocks = chunks[relative, 1]
        numbers = [(blocks - rank) % size]
        if self.ranks.even:
            numbers.append(self.ranks.constants(HOSTS, rank, blocks))
            hosts, per = self.ranks.hosts, self.ranks.per_host
            own = rank % per * hosts + rank // per
            numbers.append(Ranks(size, hosts).constants(HOSTS, own, blocks))
        found = []
        for number in numbers:
            found.append(chunks.copy())
            found[-1][relative, 1] = number
        return found

    def like(self, other: Outline) -> bool:
        """Whether two ranks, this one and `other`, have the same steps, except for the peers of messages."""
        if not np.array_equal(self.forms, other.forms):
            return False
        return any(map(np.array_equal, self.places, other.places)) or (
            np.array_equal(self.waits.task, other.waits.task) and np.array_equal(self.waits.other, other.waits.other)
        )


def _all_chunks(step: Step) -> tuple[Chunk, ...]:
    read, written = accesses(step)
    return (*read, *written)
