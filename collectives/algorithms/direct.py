"""All ranks exchange data with all others, or with one rank, directly: no rank forwards data.

These algorithms take one or two rounds. They are for small groups, small data, or ranks that share memory. A reduction
combines all operands at once, in the order of ranks, so the result is rounded only once.

R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005; the
parameter server (`star`): M. Li et al., OSDI 2014.
"""

from __future__ import annotations

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Chunk, Operand, Schedule


def _others(rank: int, size: int) -> list[int]:
    """The other ranks, beginning with the next one, so that not all ranks start with the same peer."""
    return [(rank + d) % size for d in range(1, size)]


def _in_rank_order(rank: int, size: int, own: Chunk) -> list[Operand]:
    return [own if r == rank else r for r in range(size)]


def _total(b: Builder, dst: Chunk, own: Chunk, rank: int, size: int) -> None:
    """Add to `b` a reduction into `dst` of the messages from all other ranks and `own`, the data of this rank."""
    if size == 1:
        b.copy(dst, own)
    else:
        b.reduce(dst, *_in_rank_order(rank, size, own), final=True)


@algorithm("allreduce", uneven=True, in_order=True)
def one_shot(rank: int, size: int) -> Schedule:
    """Allreduce: each rank sends all its data to all others and computes the whole result itself.

    For a group of any size p and n bytes of data: 1 round; a rank sends n(p-1) bytes, or writes n bytes once if peers
    share memory. If a message costs alpha, a byte beta and a reduced byte gamma, the time is alpha + n(p-1) beta +
    n(p-1) gamma.

    The algorithm does not work in place. A rank could overwrite its array only after all others have read this array.
    But the others read it while they overwrite their own arrays. So all ranks would wait for each other.
    """
    b = Builder("allreduce", "one_shot", rank, size, grid=(1, 1))
    if size > 1:
        b.send(_others(rank, size), b.inp())
        b.flat(b.inp(), b.inp())
    _total(b, b.out(), b.inp(), rank, size)
    return b.build()


@algorithm("allreduce", in_place=True, uneven=True, in_order=True)
def two_shot(rank: int, size: int) -> Schedule:
    """Allreduce: rank r receives block r from all ranks, reduces these blocks, and sends the result to all.

    For a group of any size p and n bytes of data: 2 rounds; a rank sends 2n(p-1)/p bytes. If a message costs alpha, a
    byte beta and a reduced byte gamma, the time is 2(p-1) alpha + 2n(p-1)/p beta + n(p-1)/p gamma.

    Ranks that share memory may instead add their arrays to one shared buffer, the pool.
    """
    b = Builder("allreduce", "two_shot", rank, size, grid=(size, size))
    others = _others(rank, size)
    if others:
        b.pool()
    for peer in others:
        b.send(peer, b.inp(peer))
    _total(b, b.out(rank), b.inp(rank), rank, size)
    if others:
        b.send(others, b.out(rank))
    for peer in reversed(others):
        b.recv(peer, b.out(peer))
    return b.build()


@algorithm("allreduce", in_place=True, uneven=True, in_order=True)
def star(rank: int, size: int) -> Schedule:
    """Allreduce: all ranks send to rank 0, which reduces the data and sends back the result. Kept for comparisons.

    For a group of any size p and n bytes of data: 2 rounds; rank 0 sends n(p-1) bytes, every other rank n bytes. If a
    message costs alpha, a byte beta and a reduced byte gamma, the time is 2 alpha + 2n(p-1) beta + n(p-1) gamma.
    """
    b = Builder("allreduce", "star", rank, size, grid=(1, 1))
    if rank == 0:
        _total(b, b.out(), b.inp(), rank, size)
        if size > 1:
            b.send(_others(rank, size), b.out())
    else:
        b.send(0, b.inp())
        b.recv(0, b.out())
    return b.build()


@algorithm("reduce_scatter", name="direct", uneven=True, in_order=True)
def direct_reduce_scatter(rank: int, size: int) -> Schedule:
    """Reduce-scatter: every rank sends its block j to rank j, which reduces the blocks that it receives and its own.

    For a group of any size p and n bytes of data: 1 round; a rank sends n(p-1)/p bytes. If a message costs alpha, a
    byte beta and a reduced byte gamma, the time is (p-1) alpha + n(p-1)/p (beta + gamma).
    """
    b = Builder("reduce_scatter", "direct", rank, size, grid=(size, 1))
    for peer in _others(rank, size):
        b.send(peer, b.inp(peer))
    b.flat(b.inp(0, size), b.inp(rank))
    _total(b, b.out(), b.inp(rank), rank, size)
    return b.build()


@algorithm("allgather", name="direct", uneven=True)
def direct_allgather(rank: int, size: int) -> Schedule:
    """Allgather: each rank sends its block to all others.

    For a group of any size p and n bytes gathered in all: 1 round; a rank sends n(p-1)/p bytes, or writes its block
    once if peers share memory. If a message costs alpha and a byte beta, the time is (p-1) alpha + n(p-1)/p beta.
    """
    b = Builder("allgather", "direct", rank, size, grid=(1, size))
    others = _others(rank, size)
    if others:
        b.send(others, b.inp())
    b.flat(b.inp(), b.inp())
    b.copy(b.out(rank), b.inp())
    for peer in reversed(others):
        b.recv(peer, b.out(peer))
    return b.build()


@algorithm("broadcast", name="direct", uneven=True)
def direct_broadcast(rank: int, size: int, root: int = 0) -> Schedule:
    """Broadcast: the root sends the whole array to each other rank.

    For a group of any size p and n bytes of data: 1 round; the root sends n(p-1) bytes, or writes n bytes once if peers
    share memory. If a message costs alpha and a byte beta, the time is (p-1) (alpha + n beta).
    """
    b = Builder("broadcast", "direct", rank, size, grid=(0, 1), root=root)
    if rank != root:
        b.recv(root, b.out())
    elif size > 1:
        b.send(_others(rank, size), b.out())
    b.flat(b.out(), b.out())
    return b.build()


@algorithm("reduce", name="direct", in_place=True, uneven=True, in_order=True)
def direct_reduce(rank: int, size: int, root: int = 0) -> Schedule:
    """Reduce: all ranks send their data to the root, which reduces all of it in one step.

    For a group of any size p and n bytes of data: 1 round; a rank sends n bytes, the root receives n(p-1) bytes. If a
    message costs alpha, a byte beta and a reduced byte gamma, the time is alpha + n(p-1) (beta + gamma).
    """
    b = Builder("reduce", "direct", rank, size, grid=(1, 1), root=root)
    b.flat(b.inp(), b.inp())
    if rank == root:
        _total(b, b.out(), b.inp(), rank, size)
    else:
        b.send(root, b.inp())
    return b.build()


@algorithm("gather", uneven=True)
def linear(rank: int, size: int, root: int = 0) -> Schedule:
    """Gather: all ranks send their blocks directly to the root.

    For a group of any size p and n bytes gathered in all: 1 round; a rank sends its block, the root receives n(p-1)/p
    bytes. If a message costs alpha and a byte beta, the time is (p-1) alpha + n(p-1)/p beta.
    """
    b = Builder("gather", "linear", rank, size, grid=(1, size), root=root)
    b.flat(b.inp(), b.inp())
    if rank == root:
        b.copy(b.out(rank), b.inp())
        for peer in _others(rank, size):
            b.recv(peer, b.out(peer))
    else:
        b.send(root, b.inp())
    return b.build()


@algorithm("scatter", name="linear", uneven=True)
def linear_scatter(rank: int, size: int, root: int = 0) -> Schedule:
    """Scatter: the root sends each other rank its block directly.

    For a group of any size p and n bytes of data: 1 round; the root sends n(p-1)/p bytes. If a message costs alpha and
    a byte beta, the time is (p-1) alpha + n(p-1)/p beta.
    """
    b = Builder("scatter", "linear", rank, size, grid=(size, 1), root=root)
    b.flat(b.inp(0, size), b.inp(rank))
    if rank == root:
        for peer in _others(rank, size):
            b.send(peer, b.inp(peer))
        b.copy(b.out(), b.inp(rank))
    else:
        b.recv(root, b.out())
    return b.build()


@algorithm("alltoall", name="direct", uneven=True)
def direct_alltoall(rank: int, size: int) -> Schedule:
    """Alltoall: each rank sends every other rank the block for it, beginning with the next rank.

    For a group of any size p and n bytes of data: 1 round; a rank sends n(p-1)/p bytes. If a message costs alpha and a
    byte beta, the time is (p-1) alpha + n(p-1)/p beta.
    """
    b = Builder("alltoall", "direct", rank, size, grid=(size, size))
    others = _others(rank, size)
    for peer in others:
        b.send(peer, b.inp(peer))
    b.flat(b.inp(0, size), b.inp(rank))
    b.copy(b.out(rank), b.inp(rank))
    for peer in reversed(others):
        b.recv(peer, b.out(peer))
    return b.build()


@algorithm("barrier", name="direct", uneven=True)
def direct_barrier(rank: int, size: int) -> Schedule:
    """Barrier: each rank sends one element to all others and waits for the elements of all others.

    For a group of any size p: 1 round; a rank sends one element to p-1 others, or writes it once if peers share memory.
    If a message costs alpha, the time is alpha.
    """
    b = Builder("barrier", "direct", rank, size, grid=(1, 1))
    others = _others(rank, size)
    if others:
        b.send(others, b.inp())
    b.flat(b.inp(), b.inp())
    _total(b, b.out(), b.inp(), rank, size)
    return b.build()
