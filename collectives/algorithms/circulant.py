"""Circulant graphs with roughly halving skips: as few rounds as can be and as few bytes as can be, for any size.

Rank r's view of the blocks is rotated: position i is block (r + i) mod p. A reduce-scatter halves the number s of
positions that a rank still works on: it sends the upper ones to the rank s' = ceil(s/2) further, for which they
are the lower ones, and adds what it gets to its own. Done backwards that is an allgather.
J. L. Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", arXiv 2410.14234, 2024.

Blocks keep their places in IN and OUT, so positions that wrap round the end make two messages instead of one.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import IN, Builder, Schedule


def _halvings(size: int) -> list[tuple[int, int]]:
    """(s, s') for every round: positions before it and after it."""
    rounds = []
    while size > 1:
        rounds.append((size, (size + 1) // 2))
        size = (size + 1) // 2
    return rounds


def _runs(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """The blocks first, first + 1, ... mod size as runs (first, count) that don't wrap."""
    first %= size
    head = min(count, size - first)
    return [run for run in ((first, head), (0, count - head)) if run[1]]


@algorithm("allreduce", in_place=True, uneven=True)
def circulant(rank: int, size: int) -> Schedule:
    """Reduce-scatter, then allgather, both in OUT.

    Rounds 2 ceil(log2 p); a rank sends 2n(p-1)/p; any size.
    2 ceil(log2 p) alpha + 2n(p-1)/p beta + n(p-1)/p gamma.
    """
    b = Builder("allreduce", "circulant", rank, size, grid=(size, size))
    if size % 2:  # the position in the middle is neither sent nor added to in the first round
        middle = (rank + size // 2) % size
        b.copy(b.out(middle), b.inp(middle))
    mine = b.inp
    for s, half in _halvings(size):
        for first, count in _runs(rank + half, s - half, size):
            b.send((rank + half) % size, mine(first, count))
        for first, count in _runs(rank, s - half, size):
            b.reduce(b.out(first, count), mine(first, count), (rank - half) % size, final=half == 1)
        mine = b.out
    _spread(b, rank, size)
    return b.build()


@algorithm("reduce_scatter", name="circulant", uneven=True)
def circulant_reduce_scatter(rank: int, size: int) -> Schedule:
    """Partial results lie in scratch in the order of positions.

    Rounds ceil(log2 p); a rank sends n(p-1)/p; any size. ceil(log2 p) alpha + n(p-1)/p (beta + gamma).
    """
    b = Builder("reduce_scatter", "circulant", rank, size, grid=(size, 1))
    rounds = _halvings(size)
    slot = b.out()
    if size > 2:
        slot = b.scratch((IN, (rank + i) % size) for i in range((size + 1) // 2))
    if size % 2:
        b.copy(slot._replace(first=size // 2, count=1), b.inp((rank + size // 2) % size))
    for s, half in rounds:
        to, source = (rank + half) % size, (rank - half) % size
        if s == size:
            for first, count in _runs(rank + half, s - half, size):
                b.send(to, b.inp(first, count))
            for first, count in _runs(rank, s - half, size):
                dst = slot._replace(first=(first - rank) % size, count=count)
                b.reduce(dst, b.inp(first, count), source, final=half == 1)
        else:
            b.send(to, slot._replace(first=half, count=s - half))
            kept = slot._replace(first=0, count=s - half)
            b.reduce(b.out() if half == 1 else kept, kept, source, final=half == 1)
    return b.build()


@algorithm("allgather", name="circulant", uneven=True)
def circulant_allgather(rank: int, size: int) -> Schedule:
    """In every round a rank gets about as much as it has.

    Rounds ceil(log2 p); a rank sends n(p-1)/p of the n gathered; any size. ceil(log2 p) alpha + n(p-1)/p beta.
    The same as J. Bruck et al. (1997), without their rotation at the end.
    """
    b = Builder("allgather", "circulant", rank, size, grid=(1, size))
    b.copy(b.out(rank), b.inp())
    _spread(b, rank, size)
    return b.build()


def _spread(b: Builder, rank: int, size: int) -> None:
    """Allgather in OUT, of which every rank has its own block."""
    for s, half in reversed(_halvings(size)):
        for first, count in _runs(rank, s - half, size):
            b.send((rank - half) % size, b.out(first, count))
        for first, count in _runs(rank + half, s - half, size):
            b.recv((rank + half) % size, b.out(first, count))
