"""Which tasks of a rank wait for which earlier ones, computed with arrays that hold all blocks at once.

Invariant: the waits are those that `collectives.schedule.dependencies` gives, because the engine runs those. Blocks
that all steps use together are one interval here, so a long chunk costs as little as a short one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from collectives.simulation.relations import Array
from collectives.simulation.sequences import turns

BEHIND: Final = -1.0  # `progress` of a wait that only the end of the step depends on


class Accesses(NamedTuple):
    """The chunks that a rank's steps read and write, in the order of the steps; of one step, the read chunks first.

    `step`: the number of the step. `chunk`: rows (buffer, first block, number of blocks). `write`: whether the step
    writes the chunk.
    """

    step: Array
    chunk: Array
    write: Array


class Waits(NamedTuple):
    """Says that tasks wait for earlier tasks of the same rank, in the order of `task`, then of `other`.

    Task `task` starts when the fraction `progress` (0 to 1) of task `other` is done. If `progress` is `BEHIND`, the
    task may start at once. In both cases the task ends after the other task has ended.
    """

    task: Array
    other: Array
    progress: Array


def waits(accesses: Accesses, number: Array, blocks: Array) -> Waits:
    """The waits of one rank.

    `number`: for each step, the task that it is part of. `blocks`: for each task, its number of blocks.
    """
    step, other, there, here = _dependencies(accesses)
    task, other = number[step], number[other]
    ahead = (here - there) / np.maximum(blocks[other], 1)
    progress = np.where(ahead < 0, BEHIND, np.minimum(ahead, 1.0))
    different = task != other
    pair, progress = (task * blocks.size + other)[different], progress[different]
    order = np.argsort(pair, kind="stable")
    pair, progress = pair[order], progress[order]
    begins = np.flatnonzero(np.diff(pair, prepend=-1))
    if begins.size < pair.size:
        pair, progress = pair[begins], np.maximum.reduceat(progress, begins)
    return Waits(pair // max(blocks.size, 1), pair % max(blocks.size, 1), progress)


def _dependencies(accesses: Accesses) -> tuple[Array, Array, Array, Array]:
    """Pairs of a step and an earlier step for which it waits, and the first blocks that the two steps use.

    Returns four arrays with an item for each pair: the step, the earlier step, the first block of the earlier step's
    chunk and of the step's chunk. A pair may be there more than once.
    """
    used = np.flatnonzero(accesses.chunk[:, 2])
    step, write = accesses.step[used], accesses.write[used]
    buffer, first, count = accesses.chunk[used].T
    # Intervals between neighbouring bounds of chunks: no chunk has only a part of one.
    span = int((first + count).max(initial=0)) + 1
    bounds, places = np.unique(np.concatenate([buffer * span + first, buffer * span + first + count]), False, True)
    low, high = places[: step.size], places[step.size :]
    access, turn = turns(high - low)
    interval = low[access] + turn
    order = np.argsort(interval, kind="stable")
    interval, access = interval[order], access[order]
    # An entry for each interval of each access; those of one interval are next to each other, earlier steps first.
    step, first, write = step[access], first[access], write[access]
    entry = np.arange(access.size)
    begin = np.searchsorted(interval, np.arange(bounds.size))[interval]
    before = np.append(-1, np.maximum.accumulate(np.where(write, entry, -1))[:-1])[: entry.size]
    after = np.append(np.minimum.accumulate(np.where(write, entry, entry.size)[::-1])[::-1][1:], entry.size)
    after = after[: entry.size]
    written = before >= begin  # whether the interval was written before this entry
    following = after.clip(max=max(entry.size - 1, 0))
    overwritten = ~write & (after < entry.size) & (interval[following] == interval) & (step[following] != step)
    was_read = np.zeros(entry.size, bool)
    was_read[after[overwritten]] = True
    reads, last = np.flatnonzero(overwritten), np.flatnonzero(written & ~(write & was_read))
    late, early = np.concatenate([after[reads], last]), np.concatenate([reads, before[last]])
    return step[late], step[early], first[early], first[late]
