"""Binomial trees: each round of a broadcast doubles the number of ranks with the data; a reduction is the reverse.

With p ranks, each rank has a number v = (rank - root) mod p, so the root is number 0. The parent of v is v without its
lowest set bit, so the ranks of a subtree have consecutive numbers: v, v + 1, ...

R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import IN, OUT, Builder, Schedule


@dataclass(frozen=True, slots=True)
class Child:
    rank: int
    first: int  # its number v minus that of its parent
    count: int  # ranks in its subtree


@dataclass(frozen=True, slots=True)
class Node:
    """The neighbours of one rank in a binomial tree: its parent (None for the root) and its children.

    `count`: the number of ranks in the subtree below and including this rank. `children` begins with the child that has
    the smallest subtree.
    """

    parent: int | None
    count: int  # ranks in its subtree
    children: tuple[Child, ...]


def node(rank: int, size: int, root: int) -> Node:
    v = (rank - root) % size
    low = v & -v or 1 << (size - 1).bit_length()
    children = []
    d = 1
    while d < low and v + d < size:
        children.append(Child((rank + d) % size, d, min(d, size - v - d)))
        d *= 2
    return Node((rank - low) % size if v else None, min(low, size - v), tuple(children))


def _runs(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """The `count` ranks from `first` on, as one run, or as two if rank 0 follows the last rank.

    A run is a pair (offset from `first`, number of ranks).
    """
    head = min(count, size - first)
    return [(0, head), (head, count - head)] if head < count else [(0, head)]


@algorithm("broadcast", uneven=True)
def binomial(rank: int, size: int, root: int = 0) -> Schedule:
    """Broadcast: each rank that has the data sends it to its children in a binomial tree, the largest subtree first.

    For a group of any size p and n bytes of data: ceil(log2 p) rounds; the root sends n ceil(log2 p) bytes. If a
    message costs alpha and a byte beta, the time is ceil(log2 p) (alpha + n beta).
    """
    b = Builder("broadcast", "binomial", rank, size, grid=(0, 1), root=root)
    place = node(rank, size, root)
    if place.parent is not None:
        b.recv(place.parent, b.out())
    if place.children:
        b.send([child.rank for child in reversed(place.children)], b.out())
    return b.build()


@algorithm("reduce", name="binomial", in_place=True, uneven=True)
def binomial_reduce(rank: int, size: int, root: int = 0) -> Schedule:
    """Reduce: a rank reduces its own data and its children's messages in one step, and sends the result to its parent.

    For a group of any size p and n bytes of data: ceil(log2 p) rounds; a rank sends n bytes. If a message costs alpha,
    a byte beta and a reduced byte gamma, the time is ceil(log2 p) (alpha + n beta + n gamma).
    """
    b = Builder("reduce", "binomial", rank, size, grid=(1, 1), root=root)
    place = node(rank, size, root)
    mine = b.inp()
    if size == 1:
        b.copy(b.out(), mine)
    if place.children:
        mine = b.out() if place.parent is None else b.like(b.inp())
        b.reduce(mine, b.inp(), *(child.rank for child in place.children), final=place.parent is None)
    if place.parent is not None:
        b.send(place.parent, mine)
    return b.build()


@algorithm("gather", name="binomial", uneven=True)
def binomial_gather(rank: int, size: int, root: int = 0) -> Schedule:
    """Gather: in a binomial tree, a rank sends the blocks of its subtree to its parent in one message.

    For a group of any size p and n bytes gathered in all: ceil(log2 p) rounds; a rank sends at most n/2 bytes. If a
    message costs alpha and a byte beta, the time is ceil(log2 p) alpha + n(p-1)/p beta. If a subtree contains both the
    last rank and rank 0, the subtree's blocks reach the root in two messages instead.
    """
    b = Builder("gather", "binomial", rank, size, grid=(1, size), root=root)
    place = node(rank, size, root)
    if place.parent is None:
        b.copy(b.out(rank), b.inp())
        for child in place.children:
            for offset, count in _runs(child.rank, child.count, size):
                b.recv(child.rank, b.out((child.rank + offset) % size, count))
        return b.build()
    mine = b.inp()
    if place.children:
        mine = b.scratch((OUT, (rank + i) % size) for i in range(place.count))
        b.copy(mine._replace(count=1), b.inp())
        for child in place.children:
            b.recv(child.rank, mine._replace(first=child.first, count=child.count))
    for offset, count in _runs(rank, place.count, size) if place.parent == root else [(0, place.count)]:
        b.send(place.parent, mine._replace(first=offset, count=count))
    return b.build()


@algorithm("scatter", name="binomial", uneven=True)
def binomial_scatter(rank: int, size: int, root: int = 0) -> Schedule:
    """Scatter: in a binomial tree, a rank sends each child the blocks of the child's subtree, largest subtree first.

    For a group of any size p and n bytes of data: ceil(log2 p) rounds; the root sends n(p-1)/p bytes. If a message
    costs alpha and a byte beta, the time is ceil(log2 p) alpha + n(p-1)/p beta. If a subtree contains both the last
    rank and rank 0, the subtree's blocks leave the root in two messages.
    """
    b = Builder("scatter", "binomial", rank, size, grid=(size, 1), root=root)
    place = node(rank, size, root)
    if place.parent is None:
        for child in reversed(place.children):
            for offset, count in _runs(child.rank, child.count, size):
                b.send(child.rank, b.inp((child.rank + offset) % size, count))
        b.copy(b.out(), b.inp(rank))
        return b.build()
    mine = b.scratch((IN, (rank + i) % size) for i in range(place.count)) if place.children else b.out()
    for offset, count in _runs(rank, place.count, size) if place.parent == root else [(0, place.count)]:
        b.recv(place.parent, mine._replace(first=offset, count=count))
    for child in reversed(place.children):
        b.send(child.rank, mine._replace(first=child.first, count=child.count))
    b.copy(b.out(), mine._replace(count=1))
    return b.build()
