"""Rings: every rank receives from its left neighbour and sends to its right neighbour only.

Best for large data: all links are busy all the time, with as few bytes as possible. P. Patarasuk, X. Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Schedule


@algorithm("allreduce", in_place=True, uneven=True)
def ring(rank: int, size: int) -> Schedule:
    """Allreduce: each block goes around the ring of ranks twice, first to add every rank's data, then as the sum.

    For a group of any size p and n bytes of data: 2(p-1) rounds; a rank sends 2n(p-1)/p bytes. If a message costs
    alpha, a byte beta and a reduced byte gamma, the time is 2(p-1) alpha + 2n(p-1)/p beta + n(p-1)/p gamma.
    """
    b = Builder("allreduce", "ring", rank, size, grid=(size, size))
    left, right = (rank - 1) % size, (rank + 1) % size
    if size == 1:
        b.copy(b.out(), b.inp())
    for t in range(size - 1):
        mine, next_ = (rank - t) % size, (rank - t - 1) % size
        b.send(right, b.out(mine) if t else b.inp(mine))
        b.reduce(b.out(next_), left, b.inp(next_), final=t == size - 2)
    for t in range(size - 1):
        b.send(right, b.out((rank + 1 - t) % size))
        b.recv(left, b.out((rank - t) % size))
    return b.build()


@algorithm("reduce_scatter", name="ring")
def ring_reduce_scatter(rank: int, size: int) -> Schedule:
    """Reduce-scatter: the partial result of a rank's block starts at its right neighbour and reaches the rank last.

    For a group of any size p and n bytes of data: p-1 rounds; a rank sends n(p-1)/p bytes. If a message costs alpha, a
    byte beta and a reduced byte gamma, the time is (p-1) alpha + n(p-1)/p (beta + gamma). Partial results alternate
    between two temporary buffers, so that a rank writes one while it sends the other.
    """
    b = Builder("reduce_scatter", "ring", rank, size, grid=(size, 1))
    left, right = (rank - 1) % size, (rank + 1) % size
    if size == 1:
        b.copy(b.out(), b.inp())
    slots = [b.like(b.out()) for _ in range(min(2, size - 2))]
    partial = b.inp(left)
    for t in range(size - 1):
        next_ = (rank - t - 2) % size
        last = t == size - 2
        b.send(right, partial)
        partial = b.out() if last else slots[t % 2]
        b.reduce(partial, left, b.inp(next_), final=last)
    return b.build()


@algorithm("allgather", name="ring", uneven=True)
def ring_allgather(rank: int, size: int) -> Schedule:
    """Allgather: in each round a rank sends its right neighbour the block that it received last, at first its own.

    For a group of any size p and n bytes gathered in all: p-1 rounds; a rank sends n(p-1)/p bytes. If a message costs
    alpha and a byte beta, the time is (p-1) alpha + n(p-1)/p beta.
    """
    b = Builder("allgather", "ring", rank, size, grid=(1, size))
    b.copy(b.out(rank), b.inp())
    for t in range(size - 1):
        mine = (rank - t) % size
        b.send((rank + 1) % size, b.out(mine) if t else b.inp())
        b.recv((rank - 1) % size, b.out((rank - t - 1) % size))
    return b.build()
