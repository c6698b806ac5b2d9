"""Allreduce over two binary trees: each tree reduces one half of the data to its root, and broadcasts the result.

This takes few rounds, and no rank sends many bytes. Messages are divided into slices, so that all levels of a tree work
at the same time. P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35(12), 2009.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Operand, Schedule


def _tree(position: int, size: int) -> tuple[int | None, list[int | None]]:
    """Returns the parent of node `position` in a binary tree, and its left and right child; None for a missing one.

    The nodes are numbered from 1 to `size` in in-order, so odd numbers are leaf nodes.
    """
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
    """Returns the parent of a rank, and its left and right child, in one of the two trees; None for a missing one.

    Rank r is node r + 1 of the first tree (`shift` 0), and node r + 2 of the second tree (`shift` 1). The last rank is
    node 1 of the second tree.
    """
    parent, children = _tree((rank + shift) % size + 1, size)
    return _rank_at(parent, shift, size), [_rank_at(child, shift, size) for child in children]


@algorithm("allreduce", in_place=True, uneven=True)
def tree(rank: int, size: int) -> Schedule:
    """Allreduce over two trees; nearly every rank is a leaf in one and an inner node in the other, for equal loads.

    For a group of any size p and n bytes of data: about 2 log2 p rounds, which overlap because data is sent in slices;
    a rank sends at most 2n bytes. If a message costs alpha, a byte beta and a reduced byte gamma, the time is about 2
    log2 p alpha + 2n beta + n gamma.
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
