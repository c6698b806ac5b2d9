"""Allreduce by halving and doubling: each round of a reduce-scatter halves a rank's data, then an allgather doubles it.

It sends as few bytes as a ring, in fewer rounds. It is best if the number of ranks is a power of two. R. Rabenseifner,
"Optimization of Collective Reduction Operations", ICCS 2004.
"""

from __future__ import annotations

from collections.abc import Callable

from collectives.algorithms.fold import Fold, fold
from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Schedule


@algorithm("allreduce", in_place=True, uneven=True, in_order=True)
def halving_doubling(rank: int, size: int) -> Schedule:
    """Allreduce by recursive halving and doubling: ranks exchange the largest halves with the nearest ranks.

    For a group of any size p, n bytes of data, and P the largest power of two up to p: 2 log2 P rounds; a rank sends
    2n(P-1)/P bytes. If a message costs alpha, a byte beta and a reduced byte gamma, the time is 2 log2 P alpha +
    2n(P-1)/P beta + n(P-1)/P gamma. If P < p, some ranks also work for a neighbour: there are 2 more rounds, such a
    rank sends n more bytes, and the time is 2 alpha + 2n beta + n gamma more.

    In each round a rank sends its half in two messages. While data is halved, the first message has the data that the
    receiver sends on in the next round. With one message, some ranks would get this data early and the others late.
    Links would then be idle between rounds.
    """
    return _schedule("halving_doubling", rank, size, _in_order)


@algorithm("allreduce", in_place=True, uneven=True, in_order=True)
def halving_doubling_short(rank: int, size: int) -> Schedule:
    """Allreduce: `halving_doubling` with one message a round, for short arrays, where a second message costs too much.

    For a group of any size p, n bytes of data, and P the largest power of two up to p: 2 log2 P rounds; a rank sends
    2n(P-1)/P bytes. If a message costs alpha, a byte beta and a reduced byte gamma, the time is 2 log2 P alpha +
    2n(P-1)/P beta + n(P-1)/P gamma. If P < p, some ranks also work for a neighbour: there are 2 more rounds, such a
    rank sends n more bytes, and the time is 2 alpha + 2n beta + n gamma more.
    """
    return _schedule("halving_doubling_short", rank, size, lambda place, k, half: [(0, half)])


def _in_order(place: Fold, k: int, half: int) -> list[tuple[int, int]]:
    """Divide the `half` blocks of round k into (offset, count): first what the next round sends on, then the rest."""
    if half == 1:
        return [(0, 1)]
    quarter = half // 2
    leaves = 0 if place.upper(1 << (k + 1)) else quarter
    return [(leaves, quarter), (quarter - leaves, quarter)]


def _schedule(name: str, rank: int, size: int, parts: Callable[[Fold, int, int], list[tuple[int, int]]]) -> Schedule:
    place = fold(rank, size)
    blocks = 1 << place.rounds
    b = Builder("allreduce", name, rank, size, grid=(blocks, blocks))
    if size == 1:
        b.copy(b.out(), b.inp())
    if place.into is not None:
        b.send(place.into, b.inp(0, blocks))
        b.recv(place.into, b.out(0, blocks))
        return b.build()
    mine = b.inp
    if place.partner is not None:
        b.reduce(b.out(0, blocks), b.inp(0, blocks), place.partner)
        mine = b.out
    first, half = 0, blocks
    given: list[tuple[int, int, int]] = []  # (peer, first block that was sent, first block that was kept)
    for k in range(place.rounds):
        peer, half = place.peer(1 << k), half // 2
        kept, gone = (first + half, first) if place.upper(1 << k) else (first, first + half)
        for offset, count in parts(place, k, half):
            b.send(peer, mine(gone + offset, count))
        for offset, count in parts(place, k, half):
            own = mine(kept + offset, count)
            b.reduce(b.out(kept + offset, count), *place.ordered(peer, own, peer), final=half == 1)
        given.append((peer, gone, kept))
        mine, first = b.out, kept
    for k, (peer, gone, kept) in reversed([*enumerate(given)]):
        for offset, count in reversed(parts(place, k, half)):
            b.send(peer, b.out(kept + offset, count))
        for offset, count in reversed(parts(place, k, half)):
            b.recv(peer, b.out(gone + offset, count))
        half *= 2
    if place.partner is not None:
        b.send(place.partner, b.out(0, blocks))
    return b.build()
