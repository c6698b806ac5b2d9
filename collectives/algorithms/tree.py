"""Two binary trees: half of the data is reduced up and broadcast down each of them.

Few rounds and few bytes, because the executor divides messages into slices that flow through the tree. P. Sanders, J.
Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12),
2009.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Operand, Schedule


def _tree(position: int, size: int) -> tuple[int | None, list[int | None]]:
    """Parent, left and right child in the binary tree whose in-order is 1 to size; odd numbers are leaf nodes."""
    low = position & -position
    parent = position - low | low << 1
    if parent > size:
        parent = position - low
    right = low >> 1
    while right and position + right > size:
        right >>= 1
    return parent or None, [position - (low >> 1) if low > 1 else None, position + right if right else None]


def _rank_at(position: int | None, shift: int, size: int) -> int | None:
    return None if position is None else (position - 1 - shift) % size


def _neighbours(rank: int, size: int, shift: int) -> tuple[int | None, list[int | None]]:
    """Parent and children of a rank: rank r is at position r + 1 in the first tree, and one further in the second."""
    parent, children = _tree((rank + shift) % size + 1, size)
    return _rank_at(parent, shift, size), [_rank_at(child, shift, size) for child in children]


@algorithm("allreduce", in_place=True, uneven=True)
def tree(rank: int, size: int) -> Schedule:
    """Ranks are leaf nodes in one tree and inner nodes in the other, so all ranks send about as many bytes.

    Rounds 2 log2 p or so, with slices flowing through them; a rank sends at most 2n; any size. Time 2 log2 p alpha + 2n
    beta + n gamma.
    """
    blocks = 2 if size > 1 else 1
    b = Builder("allreduce", "tree", rank, size, grid=(blocks, blocks))
    if size == 1:
        b.copy(b.out(), b.inp())
        return b.build()
    trees = [(block, *_neighbours(rank, size, shift=block)) for block in range(blocks)]
    for block, parent, (left, right) in trees:
        operands: list[Operand | None] = [left, b.inp(block), right]
        given = [o for o in operands if o is not None]
        mine = b.inp(block)
        if len(given) > 1:
            mine = b.out(block)
            b.reduce(mine, *given, final=parent is None)
        if parent is not None:
            b.send(parent, mine)
    for block, parent, children in trees:
        if parent is not None:
            b.recv(parent, b.out(block))
        below = [child for child in children if child is not None]
        if below:
            b.send(below, b.out(block))
    return b.build()
