"""Broadcast of large data: a scatter, then an allgather.

E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory, practice, and experience",
Concurrency and Computation 19(13), 2007.
"""

from __future__ import annotations

from collectives.algorithms.binomial import node
from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Schedule


@algorithm("broadcast", uneven=True)
def scatter_allgather(rank: int, size: int, root: int = 0) -> Schedule:
    """Broadcast: a binomial tree scatters p pieces, then a ring sends each piece to the ranks that do not have it yet.

    For a group of any size p and n bytes of data: at most ceil(log2 p) + p-1 rounds; the root sends at most 2n(p-1)/p
    bytes. If a message costs alpha and a byte beta, the time is (ceil(log2 p) + p-1) alpha + 2n(p-1)/p beta. Piece 0 is
    scattered to the root, piece 1 to the next rank, and so on.
    """
    b = Builder("broadcast", "scatter_allgather", rank, size, grid=(0, size), root=root)
    v, place = (rank - root) % size, node(rank, size, root)
    if place.parent is not None:
        b.recv(place.parent, b.out(v, place.count))
    for child in reversed(place.children):
        b.send(child.rank, b.out(v + child.first, child.count))
    right = (rank + 1) % size
    their_v, theirs = (v + 1) % size, node(right, size, root)
    for t in range(size - 1):
        sent, got = (v - t) % size, (v - t - 1) % size
        if not their_v <= sent < their_v + theirs.count:
            b.send(right, b.out(sent))
        if not v <= got < v + place.count:
            b.recv((rank - 1) % size, b.out(got))
    return b.build()
