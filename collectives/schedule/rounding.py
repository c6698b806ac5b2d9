"""How often data is rounded on its way through a schedule, if partial results are sent in a narrow format.

Invariant: each rank's input counts as rounded once before its first step. A reduction rounds its result once, whatever
number of operands it has; messages and copies round nothing.
"""

from __future__ import annotations

from functools import lru_cache

from collectives.schedule.algorithm import Algorithm
from collectives.schedule.conditions import collective
from collectives.schedule.form import OUT, SCRATCH, Chunk, Copy, Recv, Reduce
from collectives.schedule.group import Group
from collectives.schedule.layout import Layout
from collectives.schedule.play import Play


@lru_cache(maxsize=256)
def roundings(algorithm: Algorithm, size: int, root: int = 0, layout: Layout | None = None) -> int:
    """Returns how often a rank's contribution to a result is rounded, on the longest path from any input to any output.

    If one rounding changes a number by at most u times the largest number, a sum of p ranks is wrong by at most about
    u times `roundings` times the sum of the ranks' largest numbers. The function makes the schedules of all ranks.
    """
    schedules = [algorithm(rank, size, root, layout) for rank in range(size)]
    contract = collective(algorithm.collective)
    memories: list[list[list[int]]] = []
    for schedule in schedules:
        buffers = (*schedule.grid, *(len(slot) for slot in schedule.scratch))
        given = [b < SCRATCH and contract.initial(b, schedule.rank, root) for b in range(len(buffers))]
        memories.append([[int(has)] * blocks for has, blocks in zip(given, buffers, strict=True)])
    group = Group(schedules)

    def read(step: int, chunk: Chunk) -> list[int]:
        return memories[group.rank_of[step]][chunk.buffer][chunk.first : chunk.first + chunk[2]]

    for n in Play(group).events():
        step = group.steps[n]
        arrived = [read(send, group.sent(send)) for send in group.sends[n]]
        if isinstance(step, Recv):
            chunk, found = step.chunk, arrived[0]
        elif isinstance(step, Copy):
            chunk, found = step.dst, read(n, step.src)
        else:
            assert isinstance(step, Reduce)
            operands = (*arrived, *(read(n, source) for source in step.sources))
            chunk, found = step.dst, [1 + max(block) for block in zip(*operands, strict=True)]
        memories[group.rank_of[n]][chunk.buffer][chunk.first : chunk.first + chunk[2]] = found
    return max(
        max(memory[OUT], default=0) for schedule, memory in zip(schedules, memories, strict=True) if schedule.grid[OUT]
    )
