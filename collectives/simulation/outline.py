"""Schedules without the names of blocks, and the sets of ranks whose schedules are the same.

Invariant: an outline has all properties of a schedule on which the schedule's time depends: kinds of steps, peers,
numbers of blocks, dependencies.

Even a group of a million ranks has few families. A family is a set of ranks with the same steps; one formula, such as
rank + 1, gives the peer of each rank. In many algorithms for several hosts all ranks are one family: a peer is so many
hosts further on, and so many ranks further on within its host. `families` computes the schedules of only some ranks of
a family. If another rank of the family had other steps, the caller would detect this when it matches the sends and
receives of all messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from collectives.schedule.dependencies import accesses, dependencies
from collectives.schedule.form import SCRATCH, Chunk, Copy, Recv, Reduce, Schedule, Send, Step
from collectives.simulation.relations import FIXED, HOSTS, MIRROR, SHIFT, XOR, Array, Ranks

SEND: Final = 0
RECV: Final = 1
REDUCE: Final = 2
COPY: Final = 3

BEHIND: Final = -1.0  # `progress` of a wait that only the end of the step depends on

_EXAMINED: Final = 64  # members; all members of a smaller family are examined
_LONG: Final = 8192  # steps; of a family with longer schedules, only two members are examined
_MANY: Final = 8192  # peers; of a family whose first member has more, only six members are examined
_WIDE: Final = 100_000  # blocks; the same for schedules with more blocks


class Wait(NamedTuple):
    """Says that a step waits for an earlier step of the same rank: for step `task`, and for how much of it.

    The step starts when the fraction `progress` (0 to 1) of the earlier step is done. If `progress` is `BEHIND`, the
    step may start at once. In both cases the step ends after the earlier step has ended.
    """

    task: int
    progress: float


class Shape(NamedTuple):
    kind: int
    peers: int
    blocks: int
    operands: int


class Outline:
    """One rank's steps in a collective, as numbers: kinds, sizes in blocks, peers, and which steps wait for which.

    Steps are sends, receives, reductions and copies. Which blocks they move is left out, because their time depends
    only on the number of blocks. `rank` and `peers` are counted from the root, so that the root is 0.

    If the data of a message reaches the end of a buffer and continues at its start, the schedule has two sends for this
    message. With `whole`, the two sends count as one. `whole` also applies at the end of a part of the buffer that has
    one block for each host. `per_host` is the number of ranks on each host, if the algorithm depends on which ranks
    share a host, else 1.
    """

    def __init__(self, schedule: Schedule, whole: bool = True, per_host: int = 1) -> None:
        self.schedule = schedule
        size, root = schedule.size, schedule.root
        self.ranks = Ranks(size, per_host)
        self.rank = (schedule.rank - root) % size
        self.number: list[int] = []  # of each step: the task, one or two steps, that it is part of
        self.shapes: list[Shape] = []
        self.peers: list[tuple[int, ...]] = []
        self._chunks: list[int] = []
        before: Step | None = None
        for step in schedule.steps:
            shape, peers = self._look(step)
            if root:
                peers = tuple((peer - root) % size for peer in peers)
            if shape.kind == REDUCE and len(peers) > 1:  # receives all messages at once, in any order
                peers = tuple(sorted(peers, key=self._distance))
            again = peers and self.peers and peers == self.peers[-1] and whole
            if again and before is not None and self._goes_round(before, step):
                last = self.shapes[-1]
                self.shapes[-1] = last._replace(blocks=last.blocks + shape.blocks)
            else:
                self.shapes.append(shape)
                self.peers.append(peers)
            self.number.append(len(self.shapes) - 1)
            before = step

    def _distance(self, peer: int) -> int:
        if self.ranks.even:
            per = self.ranks.per_host
            return (peer // per - self.rank // per) % self.ranks.hosts * per + (peer - self.rank) % per
        return (peer - self.rank) % self.schedule.size

    def _goes_round(self, before: Step, step: Step) -> bool:
        """Whether `before` stops at the end of a buffer or part of it, and `step` continues at the start."""
        if type(before) is not type(step) or isinstance(step, Copy):
            return False
        for ends, begins in zip(_all_chunks(before), _all_chunks(step), strict=False):
            if begins.buffer < SCRATCH and begins.buffer == ends.buffer and begins.first < ends.first:
                blocks = ends.first + ends.count - begins.first
                parts = {self.schedule.grid[ends.buffer], self.ranks.hosts if self.ranks.even else 0}
                if blocks in parts and begins.first % blocks == 0:
                    return True
        return False

    def _look(self, step: Step) -> tuple[Shape, tuple[int, ...]]:
        if isinstance(step, Send):
            self._chunks += step.chunk
            return Shape(SEND, len(step.peers), step.chunk.count, 0), step.peers
        if isinstance(step, Recv):
            self._chunks += step.chunk
            return Shape(RECV, 1, step.chunk.count, 1), (step.peer,)
        self._chunks += step.dst
        if isinstance(step, Reduce):
            peers = step.peers
            for source in step.sources:
                self._chunks += source
            return Shape(REDUCE, len(peers), step.dst.count, len(step.operands)), peers
        self._chunks += step.src
        return Shape(COPY, 0, step.dst.count if step.dst != step.src else 0, 1), ()

    @cached_property
    def forms(self) -> Array:
        return np.fromiter(chain.from_iterable(self.shapes), np.int64).reshape(-1, 4)

    @cached_property
    def flat_peers(self) -> Array:
        return np.fromiter(chain.from_iterable(self.peers), np.int64)

    @cached_property
    def waits(self) -> list[list[Wait]]:
        result: list[dict[int, float]] = [{} for _ in self.shapes]
        for step, found in enumerate(dependencies(self.schedule)):
            task = self.number[step]
            mine = result[task]
            for earlier, _, there, here in found:
                other = self.number[earlier]
                if other == task:
                    continue
                ahead = (here - there) / max(self.shapes[other].blocks, 1)
                mine[other] = max(mine.get(other, BEHIND), BEHIND if ahead < 0 else min(ahead, 1.0))
        return [[Wait(*item) for item in found.items()] for found in result]

    @cached_property
    def places(self) -> list[Array]:
        """The blocks that the steps use: arrays with rows (buffer, first block, number of blocks).

        In a buffer with one block for each rank, block 0 is the rank's own, and the other blocks are counted from block
        0. Each array counts in another way: by rank; by host, then local rank; by local rank, then host.
        """
        chunks = np.fromiter(self._chunks, np.int64).reshape(-1, 3)
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
        return any(map(np.array_equal, self.places, other.places)) or all(
            {w.task for w in mine} == {w.task for w in theirs}
            for mine, theirs in zip(self.waits, other.waits, strict=True)
        )


def _all_chunks(step: Step) -> tuple[Chunk, ...]:
    read, written = accesses(step)
    return (*read, *written)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A set of ranks that have the same steps in a collective, except for the peers of messages.

    `members`: the ranks. `outline`: the steps. `relations` and `constants` have an item for each peer of each step, in
    order. The two items say how to compute the peer from the rank, such as (rank + constant) mod size.
    """

    members: range
    outline: Outline
    relations: Array
    constants: Array

    @property
    def whole(self) -> int | None:
        """The one formula by which all peers of all members are computed; None if `relations` has several formulas."""
        found = set(self.relations.tolist())
        return found.pop() if len(found) == 1 else None


def singles(outlines: Sequence[Outline]) -> list[Family]:
    """Returns a set for each rank, which contains only this rank: treats all ranks as if they had different steps."""
    return [
        Family(range(i, i + 1), o, np.full(o.flat_peers.size, FIXED, np.int64), o.flat_peers)
        for i, o in enumerate(outlines)
    ]


def families(outline: Callable[[int], Outline], ranks: Ranks) -> list[Family]:
    """Divides the ranks of a group into sets of ranks that have the same steps, except for the peers of messages.

    `outline(rank)` returns the steps of a rank, as numbers. A set has all ranks of the group, or ranks that differ by
    multiples of the number of ranks on each host.
    """
    size, stride = ranks.size, min(ranks.per_host, ranks.size)
    if ranks.even:
        everyone = range(size)
        if (family := _family(everyone, _sample(everyone, outline), ranks, (HOSTS,))) is not None:
            return [family]
    found: list[Family] = []
    pending = [range(first, size, stride) for first in range(stride)]
    while pending:
        members = pending.pop()
        chosen = _sample(members, outline)
        if (family := _family(members, chosen, ranks)) is not None:
            found.append(family)
        elif len(members) > 2 and _family(members[:-1], chosen[:-1], ranks) is not None:
            pending += [members[:-1], members[-1:]]
        elif len(members) > 2 and _family(members[1:], chosen[1:], ranks) is not None:
            pending += [members[1:], members[:1]]
        else:
            pending += [members[::2], members[1::2]]
    return found


def _sample(members: range, outline: Callable[[int], Outline]) -> list[Outline]:
    n = len(members)
    first = outline(members[0])
    if n <= _EXAMINED and n * len(first.shapes) < _EXAMINED * _LONG:
        places = list(range(n))
    elif len(first.shapes) > _LONG or int(first.forms[:, 2].sum()) > _WIDE:
        places = [0, n // 2 + 1]
    elif first.flat_peers.size > _MANY:
        places = [0, 1, 2, n // 2, n - 2, n - 1]
    else:
        places = [0, 1, 2, 3, n // 7, n // 3 + 1, n // 2, n * 5 // 7, n - 4, n - 3, n - 2, n - 1]
    return [first if i == 0 else outline(members[i]) for i in sorted(set(places)) if 0 <= i < n]


def _family(
    members: range, outlines: Sequence[Outline], ranks: Ranks, among: tuple[int, ...] = (SHIFT, XOR, FIXED, MIRROR)
) -> Family | None:
    first = outlines[0]
    if any(not o.like(first) for o in outlines[1:]):
        return None
    relations = np.full(first.flat_peers.size, -1, np.int64)
    constants = np.zeros(first.flat_peers.size, np.int64)
    for relation in (FIXED,) if len(outlines) == 1 else among:
        mine = [ranks.constants(relation, o.rank, o.flat_peers) for o in outlines]
        fits = np.all([other == mine[0] for other in mine], axis=0)
        new = np.full(fits.shape, True) if fits.all() else fits & (relations < 0)  # one that fits all peers wins
        relations[new], constants[new] = relation, mine[0][new]
        if fits.all():
            break
    return None if (relations < 0).any() else Family(members, first, relations, constants)
