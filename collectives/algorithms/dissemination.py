"""The dissemination barrier: each message tells which ranks have arrived, in every round twice as many as before.

D. Hensgen, R. Finkel, U. Manber, "Two Algorithms for Barrier Synchronization", International Journal of Parallel
Programming 17(1), 1988.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Schedule


@algorithm("barrier", uneven=True)
def dissemination(rank: int, size: int) -> Schedule:
    """Barrier: in round k a rank sends to the rank 2^k further on, once it has received all messages of earlier rounds.

    For a group of any size p: ceil(log2 p) rounds; a rank sends one element in each round. If a message costs alpha,
    the time is ceil(log2 p) alpha.

    A rank sends the reduction of its own element and all that it has received, so each message depends on earlier ones.
    """
    b = Builder("barrier", "dissemination", rank, size, grid=(1, 1))
    if size == 1:
        b.copy(b.out(), b.inp())
    heard = b.inp()
    d = 1
    while d < size:
        last = 2 * d >= size
        b.send((rank + d) % size, heard)
        before, heard = heard, b.out() if last else b.like(b.inp())
        b.reduce(heard, before, (rank - d) % size, final=last)
        d *= 2
    return b.build()
