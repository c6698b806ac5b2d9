"""Bruck's alltoall: few messages, for blocks so small that sending each of them several times does not matter.

J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all communications in
multiport message-passing systems", IEEE TPDS 8(11), 1997.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import IN, Builder, Chunk, Schedule


@algorithm("alltoall")
def bruck(rank: int, size: int) -> Schedule:
    """Alltoall: in round k, a block whose destination is d ranks further on moves 2^k ranks if bit k of d is set.

    For a group of any size p, n bytes of data, and blocks of equal size: ceil(log2 p) rounds; a rank sends about n/2
    bytes in each round. If a message costs alpha and a byte beta, the time is ceil(log2 p) (alpha + n/2 beta), and each
    block that is sent is also copied locally.
    """
    b = Builder("alltoall", "bruck", rank, size, grid=(size, size))
    at = [b.inp((rank + d) % size) for d in range(size)]  # where the block is now that had d ranks to travel
    slot = b.scratch((IN, 0) for _ in range(size // 2)) if size > 3 else b.inp()
    k = 1
    while k < size:
        travelling = [d for d in range(size) if d & k]
        if len(travelling) == 1:
            packed = at[k]
        else:
            packed = slot._replace(count=len(travelling))
            for i, d in enumerate(travelling):
                b.copy(Chunk(packed.buffer, i), at[d])
        arrived = b.scratch((IN, 0) for _ in travelling)
        b.send((rank + k) % size, packed)
        b.recv((rank - k) % size, arrived)
        for i, d in enumerate(travelling):
            at[d] = Chunk(arrived.buffer, i)
        k *= 2
    for d in range(size):
        b.copy(b.out((rank - d) % size), at[d])
    return b.build()
