"""Schedules without the names of blocks, and the sets of ranks whose schedules are the same.

Invariant: an outline has all properties of a schedule on which the schedule's time depends: kinds of steps, peers,
numbers of blocks, dependencies.

Even a group of a million ranks has few families. A family is a set of ranks with the same steps; one formula, such as
rank + 1, gives the peer of each rank. `families` computes the schedules of only some ranks of a family. If another rank
of the family had other steps, the caller would detect this when it matches the sends and receives of all messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.schedule.dependencies import accesses, dependencies
from collectives.schedule.form import SCRATCH, Chunk, Copy, Recv, Reduce, Schedule, Send, Step

SEND: Final = 0
RECV: Final = 1
REDUCE: Final = 2
COPY: Final = 3

# How a peer's number follows from a rank's number and a constant d.
SHIFT: Final = 0  # (rank + d) mod size
XOR: Final = 1
FIXED: Final = 2
MIRROR: Final = 3  # (d - rank) mod size
BEHIND: Final = -1.0  # `progress` of a wait that only the end of the step depends on

_EXAMINED: Final = 64  # members; all members of a smaller family are examined
_LONG: Final = 8192  # steps; of a family with longer schedules, only two members are examined
_WIDE: Final = 100_000  # blocks; the same for schedules with more blocks

Array = npt.NDArray[Any]


class Wait(NamedTuple):
    """A dependency of a step on an earlier step, `task`.

    The step starts when the fraction `progress` (0 to 1) of `task` is done, and ends after `task` has ended. If
    `progress` is `BEHIND`, only the end of the step waits for `task`.
    """

    task: int
    progress: float


class Shape(NamedTuple):
    kind: int
    peers: int
    blocks: int
    operands: int


class Outline:
    """One rank's steps (sends, receives, reductions and copies of an algorithm) as arrays of numbers.

    Which blocks of an array a step moves is left out, because the time depends only on their number.

    With `whole`, two consecutive messages with the same peers count as one if they wrap around a buffer: the first
    stops at the end of the buffer, and the second begins at its start. In `rank` and `peers`, ranks are counted from
    the root, so that the root is 0.
    """

    def __init__(self, schedule: Schedule, whole: bool = True) -> None:
        self.schedule = schedule
        size, root = schedule.size, schedule.root
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
            if shape.kind == REDUCE:  # receives all messages at once, in any order
                peers = tuple(sorted(peers, key=self._distance))
            again = peers and self.peers and peers == self.peers[-1] and whole
            if again and before is not None and _goes_round(schedule, before, step):
                last = self.shapes[-1]
                self.shapes[-1] = last._replace(blocks=last.blocks + shape.blocks)
            else:
                self.shapes.append(shape)
                self.peers.append(peers)
            self.number.append(len(self.shapes) - 1)
            before = step

    def _distance(self, peer: int) -> int:
        return (peer - self.rank) % self.schedule.size

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
        return np.array(self.shapes, np.int64).reshape(-1, 4)

    @cached_property
    def flat_peers(self) -> Array:
        return np.array([peer for peers in self.peers for peer in peers], np.int64)

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
    def places(self) -> Array:
        """The chunks (buffer, first block, number of blocks) that the steps use, one chunk in each row.

        In a buffer with one block for each rank, blocks are counted from the rank's own block, so that this block is 0.
        """
        chunks = np.array(self._chunks, np.int64).reshape(-1, 3)
        for buffer, blocks in enumerate(self.schedule.grid):
            if blocks == self.schedule.size:
                mine = chunks[:, 0] == buffer
                chunks[mine, 1] = (chunks[mine, 1] - self.schedule.rank) % blocks
        return chunks

    def like(self, other: Outline) -> bool:
        """Whether this outline and `other` have the same steps, except for the peers of messages."""
        if not np.array_equal(self.forms, other.forms):
            return False
        return np.array_equal(self.places, other.places) or all(
            {w.task for w in mine} == {w.task for w in theirs}
            for mine, theirs in zip(self.waits, other.waits, strict=True)
        )


def _goes_round(schedule: Schedule, before: Step, step: Step) -> bool:
    """Whether the step `before` stops at the end of a buffer, and `step` continues at the start of that buffer."""
    if type(before) is not type(step) or isinstance(step, Copy):
        return False
    for ends, begins in zip(_all_chunks(before), _all_chunks(step), strict=False):
        if begins.buffer < SCRATCH and begins.first == 0 and begins.buffer == ends.buffer:
            return ends.first > 0 and ends.first + ends.count == schedule.grid[ends.buffer]
    return False


def _all_chunks(step: Step) -> tuple[Chunk, ...]:
    read, written = accesses(step)
    return (*read, *written)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A family: ranks with the same steps, except for the peers of messages.

    `relations` and `constants` have an entry for each peer of each step, in order. The two entries say how the peer's
    number follows from the rank's number, such as (rank + constant) mod size.
    """

    members: range
    outline: Outline
    relations: Array
    constants: Array

    @property
    def whole(self) -> int | None:
        """The relation that all peers have to their ranks; None if relations differ."""
        found = set(self.relations.tolist())
        return found.pop() if len(found) == 1 else None


def partners(relation: int, constant: int, ranks: Array, size: int) -> Array:
    """The peers of `ranks`, computed by `relation` and `constant`, such as (rank + constant) mod size."""
    if relation == SHIFT:
        return (ranks + constant) % size
    if relation == XOR:
        return ranks ^ constant
    if relation == MIRROR:
        return (constant - ranks) % size
    return np.full_like(ranks, constant)


def singles(outlines: Sequence[Outline]) -> list[Family]:
    """Families (sets of ranks with the same steps) that contain one rank each."""
    return [
        Family(range(i, i + 1), o, np.full(o.flat_peers.size, FIXED, np.int64), o.flat_peers)
        for i, o in enumerate(outlines)
    ]


def families(outline: Callable[[int], Outline], size: int, stride: int = 1) -> list[Family]:
    """The families (ranks with the same steps) into which the outlines divide ranks 0 to `size` - 1.

    `outline(rank)` makes the outline (the steps as numbers) of a rank. The ranks of a family are multiples of `stride`
    apart.
    """
    found: list[Family] = []
    pending = [range(first, size, stride) for first in range(min(stride, size))]
    while pending:
        members = pending.pop()
        chosen = _sample(members, outline)
        if (family := _family(members, chosen, size)) is not None:
            found.append(family)
        elif len(members) > 2 and _family(members[:-1], chosen[:-1], size) is not None:
            pending += [members[:-1], members[-1:]]
        elif len(members) > 2 and _family(members[1:], chosen[1:], size) is not None:
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
    else:
        places = [0, 1, 2, 3, n // 7, n // 3 + 1, n // 2, n * 5 // 7, n - 4, n - 3, n - 2, n - 1]
    return [first if i == 0 else outline(members[i]) for i in sorted(set(places)) if 0 <= i < n]


def _family(members: range, outlines: Sequence[Outline], size: int) -> Family | None:
    first = outlines[0]
    ranks = [o.rank for o in outlines]
    if any(not o.like(first) for o in outlines[1:]):
        return None
    peers = [o.flat_peers for o in outlines]
    relations = np.full(peers[0].size, -1, np.int64)
    constants = np.zeros(peers[0].size, np.int64)
    for relation in (FIXED,) if len(outlines) == 1 else (SHIFT, XOR, FIXED, MIRROR):
        mine = [_constant(relation, r, p, size) for r, p in zip(ranks, peers, strict=True)]
        fits = np.all([other == mine[0] for other in mine], axis=0)
        new = np.full(fits.shape, True) if fits.all() else fits & (relations < 0)  # one that fits all peers wins
        relations[new], constants[new] = relation, mine[0][new]
        if fits.all():
            break
    return None if (relations < 0).any() else Family(members, first, relations, constants)


def _constant(relation: int, rank: int, peers: Array, size: int) -> Array:
    if relation == SHIFT:
        return (peers - rank) % size
    if relation == XOR:
        return peers ^ rank
    return peers if relation == FIXED else (peers + rank) % size
