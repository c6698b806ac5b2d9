"""Alltoall in which two ranks at a time exchange their blocks.

R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005. The paper
pairs ranks by the exclusive or of their numbers; here their sum decides, which works for any number of ranks.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Schedule


@algorithm("alltoall", uneven=True)
def pairwise(rank: int, size: int) -> Schedule:
    """Alltoall among p ranks: in turn t, two ranks exchange blocks if the sum of their numbers is t modulo p.

    For a group of any size p and n bytes of data: 1 round, listed as p turns; a rank sends n(p-1)/p bytes. If a message
    costs alpha and a byte beta, the time is (p-1) alpha + n(p-1)/p beta. Turns are only the order in which the schedule
    lists exchanges: no exchange depends on an earlier exchange.
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
