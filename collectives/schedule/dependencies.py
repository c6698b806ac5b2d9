"""The earlier steps of the same rank that a step waits for, because of the data that it reads or overwrites.

Invariant: steps may start in any order and advance byte by byte in any interleaving. If each step respects the
dependencies listed here, the rank's memory ends as if it had run its steps one by one in listed order.

A step processes its chunks from start to end, at the same offset in all of them. So if two steps use the same bytes of
a buffer, the later step may process byte x only after the earlier step has processed byte x. This rule also suffices if
chunks overlap only partly. A send has processed byte x as soon as byte x may be overwritten.

A dependency is omitted only if other dependencies imply it for the same blocks: a step that writes a block waits for
the steps that have read the block since its last write. If there are any, the step need not wait for this last write,
because the readers waited for it. The order of messages between two ranks is never a reason to omit a dependency.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, TypeAlias

from collectives.schedule.form import IN, OUT, Chunk, Copy, Recv, Reduce, Schedule, Send, Step


class Dependency(NamedTuple):
    """An earlier step of the same rank that a step has to wait for, because both use the same blocks of `buffer`.

    `step` is the number of the earlier step. It uses blocks of the buffer from number `there` on; the waiting step uses
    blocks from number `here` on. The waiting step may use a byte as soon as the earlier step has processed that byte.
    """

    step: int
    buffer: int
    there: int
    here: int


_Access: TypeAlias = "tuple[int, int]"  # step, and the first block of its chunk


def dependencies(schedule: Schedule, in_place: bool = False) -> tuple[tuple[Dependency, ...], ...]:
    """Returns for each step of `schedule` the earlier steps for which the step waits, because both use the same data.

    `schedule` lists one rank's steps; the result has a tuple for each step, in the same order. `in_place`: the input
    and output buffers are the same memory. Raises ValueError if these buffers differ in size.
    """
    if in_place and schedule.grid[0] != schedule.grid[1]:
        raise ValueError(f"IN and OUT of a {schedule.collective} differ in size and cannot be the same memory")
    # For each buffer and block: the step that wrote it last, if any, and the steps that have read it since.
    writers: defaultdict[int, dict[int, _Access]] = defaultdict(dict)
    readers: defaultdict[int, dict[int, list[_Access]]] = defaultdict(dict)
    result: list[tuple[Dependency, ...]] = []
    for number, step in enumerate(schedule.steps):
        reads, writes = accesses(step)
        if in_place and isinstance(step, Copy) and (step.src, step.dst.buffer) == (step.dst._replace(buffer=IN), OUT):
            result.append(())  # source and destination are the same memory
            continue
        found: dict[tuple[int, int, int, int], None] = {}  # a set that keeps its order
        for buffer, first, count in reads:
            memory = OUT if in_place and buffer == IN else buffer
            written, read = writers[memory], readers[memory]
            access = (number, first)
            for block in range(first, first + count):
                if (before := written.get(block)) is not None:
                    found[before[0], buffer, before[1], first] = None
                if (others := read.get(block)) is not None:
                    others.append(access)
                else:
                    read[block] = [access]
        for buffer, first, count in writes:
            written, read = writers[buffer], readers[buffer]
            access = (number, first)
            for block in range(first, first + count):
                was_read = False
                for step_there, there in read.pop(block, ()):
                    if step_there != number:
                        found[step_there, buffer, there, first] = None
                        was_read = True
                if not was_read and (before := written.get(block)) is not None:
                    found[before[0], buffer, before[1], first] = None
                written[block] = access
        result.append(tuple(map(Dependency._make, found)))
    return tuple(result)


def accesses(step: Step) -> tuple[tuple[Chunk, ...], tuple[Chunk, ...]]:
    """The chunks that a step reads and those that it writes."""
    if isinstance(step, Send):
        return (step.chunk,), ()
    if isinstance(step, Recv):
        return (), (step.chunk,)
    if isinstance(step, Reduce):
        return step.sources, (step.dst,)
    return (step.src,), (step.dst,)
