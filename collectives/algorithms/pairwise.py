"""Alltoall in which two ranks at a time exchange their blocks.

R. Thakur, R. Rabenseifner, W. Gropp (2005), who pair ranks by exclusive or; pairing by sum works for any size.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Schedule


@algorithm("alltoall", uneven=True)
def pairwise(rank: int, size: int) -> Schedule:
    """In turn t, ranks whose sum is t mod p exchange their blocks.

    Rounds 1, listed as p turns; a rank sends n(p-1)/p; any size. Time (p-1) alpha + n(p-1)/p beta. Turns are only the
    order in which exchanges are listed: an exchange does not depend on those of earlier turns.
    """
    b = Builder("alltoall", "pairwise", rank, size, grid=(size, size))
    for t in range(size):
        peer = (t - rank) % size
        if peer == rank:
            b.copy(b.out(rank), b.inp(rank))
        else:
            b.send(peer, b.inp(peer))
            b.recv(peer, b.out(peer))
    return b.build()
