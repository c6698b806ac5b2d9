"""The round in which each message of a schedule moves, where a message waits until both of its ranks have come to it.

Invariant: both ranks of a message have it in the same round, and its data was complete in an earlier one. So ranks that
go from round to round never wait for each other in a circle, even if each runs a round's messages as one group.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from collectives.schedule.algorithm import Algorithm
from collectives.schedule.form import Reduce, Send
from collectives.schedule.group import Group
from collectives.schedule.layout import Layout
from collectives.schedule.play import Play


class Rounds(NamedTuple):
    """The rounds in which the steps of one rank happen.

    - `steps`: for each step, a tuple with its round; for a send, with a round for each peer, in the order of its peers
    - `rounds`: the number of rounds of all ranks; round 0, the steps before the first message, does not count
    - `operands`: the largest number of operands of a reduction, of all ranks
    """

    steps: tuple[tuple[int, ...], ...]
    rounds: int
    operands: int


@lru_cache(maxsize=256)
def rounds_of(algorithm: Algorithm, rank: int, size: int, root: int = 0, layout: Layout | None = None) -> Rounds:
    """Returns the rounds in which the steps of `rank` happen. Results are cached.

    The function makes the schedules of all ranks, so it takes longer for more ranks. IN and OUT, the input and output
    buffers, are separate memory. Raises VerificationError if the schedules deadlock or a send has no receive.
    """
    group = Group([algorithm(r, size, root, layout) for r in range(size)])
    numbers = Play(group).rounds()
    steps = []
    for n, step in enumerate(group.schedules[rank].steps, group.start[rank]):
        if isinstance(step, Send):
            receivers = {group.rank_of[receive]: receive for receive in group.receives[n]}
            steps.append(tuple(numbers[receivers[peer]] for peer in step.peers))
        else:
            steps.append((numbers[n],))
    operands = max((len(step.operands) for step in group.steps if isinstance(step, Reduce)), default=0)
    return Rounds(tuple(steps), max(numbers, default=0), operands)
