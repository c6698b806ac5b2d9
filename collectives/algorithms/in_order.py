"""Reductions that combine data in the order of ranks, for non-commutative functions, with few messages at once.

R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

from collectives.algorithms.binomial import node
from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Chunk, Operand, Schedule


@algorithm("reduce", in_place=True, uneven=True, in_order=True)
def binomial_in_order(rank: int, size: int, root: int = 0) -> Schedule:
    """Reduce on a binomial tree with root 0, where subtrees have consecutive ranks; rank 0 sends the result to `root`.

    For a group of any size p and n bytes of data: ceil(log2 p) rounds, and 1 more unless the root is rank 0; a rank
    sends n bytes. If a message costs alpha, a byte beta and a reduced byte gamma, the time is ceil(log2 p) (alpha + n
    beta + n gamma). Unless the root is rank 0, the time is alpha + n beta more.
    """
    b = Builder("reduce", "binomial_in_order", rank, size, grid=(1, 1), root=root)
    place = node(rank, size, 0)
    mine = b.inp()
    if size == 1:
        b.copy(b.out(), mine)
    if place.children:
        mine = b.out() if rank == root == 0 else b.like(b.inp())
        b.reduce(mine, b.inp(), *(child.rank for child in place.children), final=rank == 0)
    if place.parent is not None:
        b.send(place.parent, mine)
    if root != 0 and rank == 0:
        b.send(root, mine)
    elif root != 0 and rank == root:
        b.recv(0, b.out())
    return b.build()


@algorithm("reduce_scatter", uneven=True, in_order=True)
def pairwise(rank: int, size: int) -> Schedule:
    """Reduce-scatter: in turn d a rank sends a block to rank + d and gets one from rank - d. It reduces all at the end.

    For a group of any size p and n bytes of data: 1 round, listed as p-1 turns; a rank sends n(p-1)/p bytes. If a
    message costs alpha, a byte beta and a reduced byte gamma, the time is (p-1) alpha + n(p-1)/p (beta + gamma). Ranks
    are counted modulo p. Turns are only the order in which the schedule lists messages: no message depends on another.
    """
    b = Builder("reduce_scatter", "pairwise", rank, size, grid=(size, 1))
    if size == 1:
        b.copy(b.out(), b.inp())
        return b.build()
    operands: list[Operand] = [b.inp(rank)] * size
    for d in range(1, size):
        got: Chunk = b.like(b.out())
        b.send((rank + d) % size, b.inp((rank + d) % size))
        b.recv((rank - d) % size, got)
        operands[(rank - d) % size] = got
    b.reduce(b.out(), *operands, final=True)
    return b.build()
