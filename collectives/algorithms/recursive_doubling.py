"""Recursive doubling: in every round a rank exchanges all its data with another rank, twice as far away as before.

It has few rounds, and is for data so small that the number of bytes sent does not matter. R. Thakur, R. Rabenseifner,
W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from collectives.algorithms.fold import fold
from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Chunk, Schedule


@algorithm("allreduce", in_place=True, uneven=True, in_order=True)
def recursive_doubling(rank: int, size: int) -> Schedule:
    """Allreduce: ranks exchange and reduce the whole array log2 P times; P is the largest power of two up to p ranks.

    For a group of any size p and n bytes of data: log2 P rounds; a rank sends n log2 P bytes. If a message costs alpha,
    a byte beta and a reduced byte gamma, the time is ceil(log2 p) (alpha + n beta + n gamma). If P < p, some ranks also
    work for a neighbour: there are 2 more rounds, such a rank sends n more bytes, and the time is alpha + n beta more.

    Results alternate between two temporary buffers, so that a rank never overwrites data that it is still sending. With
    one buffer, two ranks would wait for each other: each would reduce only after its own send. But this send ends only
    after the peer's reduction.
    """
    b = Builder("allreduce", "recursive_doubling", rank, size, grid=(1, 1))
    if size == 1:
        b.copy(b.out(), b.inp())
    else:
        within(b, range(size), rank, b.inp())
    return b.build()


def within(b: Builder, team: Sequence[int], at: int, mine: Chunk) -> None:
    """Adds to `b` the steps of an allreduce among the ranks `team`, by recursive doubling; this rank is `team[at]`.

    `mine`: the part of a buffer with this rank's input. The result is written to OUT, the output buffer.
    """
    place = fold(at, len(team))
    if place.into is not None:
        b.send(team[place.into], mine)
        b.recv(team[place.into], b.out())
        return
    spare = cycle(b.like(b.inp()) for _ in range(2))
    if place.partner is not None:
        folded = next(spare)
        b.reduce(folded, mine, team[place.partner])
        mine = folded
    for k in range(place.rounds):
        number, last = place.peer(1 << k), k == place.rounds - 1
        peer = team[number]
        b.send(peer, mine)
        theirs: int | Chunk = peer
        if last and mine == b.inp():  # in place, OUT is still being sent
            theirs = next(spare)
            b.recv(peer, theirs)
        result = b.out() if last else next(spare)
        b.reduce(result, *place.ordered(number, mine, theirs), final=last)
        mine = result
    if place.partner is not None:
        b.send(team[place.partner], mine)
