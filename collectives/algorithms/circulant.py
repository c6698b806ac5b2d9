"""Circulant graphs, where the distance to the peer halves in each round: the fewest rounds and bytes for any p ranks.

Rank r numbers the blocks from its own block on: position i is block (r + i) mod p. In each round of a reduce-scatter,
the number of positions that a rank still works on falls from s to s' = ceil(s/2). The rank sends the blocks at its
upper s - s' positions to the rank s' further on, where these blocks have the lowest positions. It adds the blocks that
it receives to its own. An allgather runs these rounds in reverse order and does not add.

J. L. Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", arXiv 2410.14234, 2024. Unlike in the
paper, blocks are not rotated in the buffers IN and OUT, so a message that goes from the last block on to block 0 is
sent as two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import IN, Builder, Chunk, Schedule

Blocks: TypeAlias = "Callable[[int, int], Chunk]"  # (first, count) -> the chunk with these blocks of a team's data


def halvings(size: int) -> list[tuple[int, int]]:
    """The rounds of a reduce-scatter on a circulant graph, each as a pair (s, s') of block counts.

    In a round, the number of blocks that a rank still works on falls from s to s' = ceil(s/2).
    """
    rounds = []
    while size > 1:
        rounds.append((size, (size + 1) // 2))
        size = (size + 1) // 2
    return rounds


def _runs(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """The `count` blocks from `first` on, modulo `size`, as one or two runs (first, count) of consecutive blocks."""
    first %= size
    head = min(count, size - first)
    return [run for run in ((first, head), (0, count - head)) if run[1]]


@algorithm("allreduce", in_place=True, uneven=True)
def circulant(rank: int, size: int) -> Schedule:
    """Allreduce: reduce-scatter, then allgather, on a circulant graph: the distance to the peer halves in each round.

    For a group of any size p and n bytes of data: 2 ceil(log2 p) rounds; a rank sends 2n(p-1)/p bytes. If a message
    costs alpha, a byte beta and a reduced byte gamma, the time is 2 ceil(log2 p) alpha + 2n(p-1)/p beta + n(p-1)/p
    gamma.
    """
    b = Builder("allreduce", "circulant", rank, size, grid=(size, size))
    within(b, range(size), rank, b.inp, b.out)
    return b.build()


def within(b: Builder, team: Sequence[int], at: int, given: Blocks, total: Blocks) -> None:
    """Adds to `b` the steps of an allreduce among the ranks `team`; this rank is `team[at]`.

    `given(first, count)` returns `count` blocks of the input, from block `first` on. `total(first, count)` returns such
    blocks of the output. If `given` and `total` are the same function, the allreduce works in place.
    """
    size = len(team)
    if size % 2:  # the position in the middle is neither sent nor added to in the first round
        middle = (at + size // 2) % size
        b.copy(total(middle, 1), given(middle, 1))
    mine = given
    for s, half in halvings(size):
        for first, count in _runs(at + half, s - half, size):
            b.send(team[(at + half) % size], mine(first, count))
        for first, count in _runs(at, s - half, size):
            b.reduce(total(first, count), mine(first, count), team[(at - half) % size], final=half == 1)
        mine = total
    _spread(b, team, at, total)


@algorithm("reduce_scatter", name="circulant", uneven=True)
def circulant_reduce_scatter(rank: int, size: int) -> Schedule:
    """Reduce-scatter on a circulant graph: the distance to the peer, and the number of blocks, halve in each round.

    For a group of any size p and n bytes of data: ceil(log2 p) rounds; a rank sends n(p-1)/p bytes. If a message costs
    alpha, a byte beta and a reduced byte gamma, the time is ceil(log2 p) alpha + n(p-1)/p (beta + gamma).
    """
    b = Builder("reduce_scatter", "circulant", rank, size, grid=(size, 1))
    rounds = halvings(size)
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
    """Allgather on a circulant graph: the distance to the peer, and the number of blocks, double in each round.

    For a group of any size p and n bytes gathered in all: ceil(log2 p) rounds; a rank sends n(p-1)/p bytes. If a
    message costs alpha and a byte beta, the time is ceil(log2 p) alpha + n(p-1)/p beta. This is the algorithm of J.
    Bruck et al. (1997) without the rotation of the blocks at its end.
    """
    b = Builder("allgather", "circulant", rank, size, grid=(1, size))
    b.copy(b.out(rank), b.inp())
    _spread(b, range(size), rank, b.out)
    return b.build()


def _spread(b: Builder, team: Sequence[int], at: int, total: Blocks) -> None:
    """Add to `b` an allgather among the ranks `team`; `total` holds the block of this rank, `team[at]`, at first."""
    size = len(team)
    for s, half in reversed(halvings(size)):
        for first, count in _runs(at, s - half, size):
            b.send(team[(at - half) % size], total(first, count))
        for first, count in _runs(at + half, s - half, size):
            b.recv(team[(at + half) % size], total(first, count))
