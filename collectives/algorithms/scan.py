"""Prefix reductions: rank r gets the reduction of ranks 0 to r (scan), or of the ranks before it (exscan).

Operands are combined in the order of ranks, so these algorithms work for every associative reduction. W. D. Hillis, G.
L. Steele, "Data parallel algorithms", CACM 29(12), 1986; P. Sanders, J. L. Träff, "Parallel prefix (scan) algorithms
for MPI", EuroPVM/MPI 2006.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from collectives.algorithms.registry import algorithm
from collectives.schedule.form import Builder, Chunk, Schedule
from collectives.schedule.layout import Layout


def _inclusive(b: Builder, team: Sequence[int], at: int, mine: Chunk, into: Chunk | None = None) -> Chunk:
    """Add to `b` a scan of `mine` over the ranks `team`, and return the chunk with the result of this rank, `team[at]`.

    The chunk is `into` if this is given and `at` > 0. In round k each rank sends its partial result to the rank 2^k
    further on, which combines it with its own.
    """
    spare = cycle(b.like(b.inp()) for _ in range(2))  # alternating, so that memory that is being sent is not written
    d = 1
    while d < len(team):
        if at + d < len(team):
            b.send(team[at + d], mine)
        if at >= d:
            result = into if into is not None and at < 2 * d else next(spare)
            b.reduce(result, team[at - d], mine)
            mine = result
        d *= 2
    return mine


def _exclusive(b: Builder, team: Sequence[int], at: int, mine: Chunk, into: Chunk | None = None) -> Chunk | None:
    """Add to `b` an exscan of `mine` over the ranks `team`; return the chunk with the result of this rank, `team[at]`.

    The first rank has no result: None. The others receive the data of the rank before them, and run `_inclusive` on it.
    """
    if at + 1 < len(team):
        b.send(team[at + 1], mine)
    if at == 0:
        return None
    before = into if at == 1 and into is not None else b.like(b.inp())
    b.recv(team[at - 1], before)
    return _inclusive(b, team[1:], at - 1, before, into)


@algorithm("scan", in_place=True, uneven=True, in_order=True)
def recursive_doubling(rank: int, size: int) -> Schedule:
    """Scan: in round k a rank sends its partial result to the rank 2^k further on, which combines it with its own.

    For a group of any size p and n bytes of data: ceil(log2 p) rounds; a rank sends at most n ceil(log2 p) bytes. If a
    message costs alpha, a byte beta and a reduced byte gamma, the time is ceil(log2 p) (alpha + n beta + n gamma).
    """
    b = Builder("scan", "recursive_doubling", rank, size, grid=(1, 1))
    b.copy(b.out(), _inclusive(b, range(size), rank, b.inp(), b.out()))
    return b.build()


@algorithm("exscan", name="recursive_doubling", in_place=True, uneven=True, in_order=True)
def recursive_doubling_exscan(rank: int, size: int) -> Schedule:
    """Exscan: each rank sends its data to the next rank; ranks 1 to p-1 then scan what they received.

    For a group of any size p and n bytes of data: 1 + ceil(log2 (p-1)) rounds; a rank sends at most n (1 + ceil(log2
    (p-1))) bytes. If a message costs alpha, a byte beta and a reduced byte gamma, the time is (1 + ceil(log2 (p-1)))
    (alpha + n beta) + ceil(log2 (p-1)) n gamma.
    """
    b = Builder("exscan", "recursive_doubling", rank, size, grid=(1, 1))
    _exclusive(b, range(size), rank, b.inp(), b.out())
    return b.build()


@algorithm("scan", in_place=True, uneven=True, in_order=True)
def chain(rank: int, size: int) -> Schedule:
    """Scan: rank r combines the result of rank r-1 with its own data, and sends its own result to rank r+1.

    For a group of any size p and n bytes of data: p-1 rounds, which overlap because long arrays are sent in slices; a
    rank sends n bytes. If a message costs alpha, a byte beta and a reduced byte gamma, the time is (p-1) alpha + n
    (beta + gamma).
    """
    b = Builder("scan", "chain", rank, size, grid=(1, 1))
    if rank == 0:
        b.copy(b.out(), b.inp())
    else:
        b.reduce(b.out(), rank - 1, b.inp())
    if rank + 1 < size:
        b.send(rank + 1, b.out())
    return b.build()


@algorithm("exscan", name="chain", in_place=True, uneven=True, in_order=True)
def chain_exscan(rank: int, size: int) -> Schedule:
    """Exscan: rank r gets its result from rank r-1, and sends this result combined with its own data to rank r+1.

    For a group of any size p and n bytes of data: p-1 rounds, which overlap because long arrays are sent in slices; a
    rank sends n bytes. If a message costs alpha, a byte beta and a reduced byte gamma, the time is (p-1) alpha + n
    (beta + gamma).
    """
    b = Builder("exscan", "chain", rank, size, grid=(1, 1))
    if rank == 0:
        if size > 1:
            b.send(1, b.inp())
        return b.build()
    if rank + 1 == size:
        b.recv(rank - 1, b.out())
        return b.build()
    before, through = b.like(b.inp()), b.like(b.inp())
    b.recv(rank - 1, before)
    b.reduce(through, before, b.inp())
    b.send(rank + 1, through)
    b.copy(b.out(), before)
    return b.build()


def _after(rank: int, size: int) -> list[int]:
    return list(range(rank + 1, size))


@algorithm("scan", in_place=True, uneven=True, in_order=True)
def direct(rank: int, size: int) -> Schedule:
    """Scan: each rank sends its data to all later ranks, then reduces its data and all that it received in one step.

    For a group of any size p and n bytes of data: 1 round; a rank sends at most n(p-1) bytes, or writes n bytes once if
    all ranks share memory. If a message costs alpha, a byte beta and a reduced byte gamma, the time is alpha + n(p-1)
    (beta + gamma).
    """
    b = Builder("scan", "direct", rank, size, grid=(1, 1))
    if rank + 1 < size:
        b.send(_after(rank, size), b.inp())
    if size > 1:
        b.flat(b.inp(), b.inp())
    if rank == 0:
        b.copy(b.out(), b.inp())
    else:
        b.reduce(b.out(), *range(rank), b.inp())
    return b.build()


@algorithm("exscan", name="direct", in_place=True, uneven=True, in_order=True)
def direct_exscan(rank: int, size: int) -> Schedule:
    """Exscan: each rank sends its data to all later ranks, then reduces all that it received in one step.

    For a group of any size p and n bytes of data: 1 round; a rank sends at most n(p-1) bytes, or writes n bytes once if
    all ranks share memory. If a message costs alpha, a byte beta and a reduced byte gamma, the time is alpha + n(p-1)
    (beta + gamma).
    """
    b = Builder("exscan", "direct", rank, size, grid=(1, 1))
    if rank + 1 < size:
        b.send(_after(rank, size), b.inp())
    if size > 1:
        b.flat(b.inp(), b.inp())
    if rank == 1:
        b.recv(0, b.out())
    elif rank > 1:
        b.reduce(b.out(), *range(rank))
    return b.build()


# --- hosts


def _runs(layout: Layout) -> list[list[int]]:
    """All ranks, divided into runs: consecutive ranks on one host."""
    runs: list[list[int]] = []
    for rank, host in enumerate(layout.hosts):
        if runs and layout.hosts[runs[-1][-1]] == host:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return runs


def _place(rank: int, layout: Layout) -> tuple[list[int], list[int], int]:
    """Returns the run of `rank` (consecutive ranks on its host), the last rank of each run, and the run's number."""
    runs = _runs(layout)
    number = next(i for i, run in enumerate(runs) if rank in run)
    return runs[number], [run[-1] for run in runs], number


def _to_the_rest(b: Builder, run: list[int], at: int) -> None:
    """Sends this rank's data to the ranks after it in the run."""
    if at + 1 < len(run):
        b.send(run[at + 1 :], b.inp())


def _from_before(b: Builder, run: list[int], rank: int, lasts: list[int], number: int, mine: Chunk) -> int | Chunk:
    """Returns the reduction over all earlier runs, as an operand: a chunk, or the rank that sends it.

    `run`: consecutive ranks on this host; `number`: its number among all runs. The last rank of the run computes the
    reduction in a chunk, by an exscan among the last ranks of all runs, `lasts`, each with its run's total in `mine`.
    Then the last rank sends the chunk to the other ranks of its run.
    """
    if rank != run[-1]:
        return run[-1]
    before = _exclusive(b, lasts, number, mine)
    assert before is not None
    if len(run) > 1:
        b.send(run[:-1], before)
    return before


@algorithm("scan", hosts=True, in_place=True, uneven=True, in_order=True)
def hierarchical_doubling(rank: int, size: int, layout: Layout) -> Schedule:
    """Scan: a scan within each run of consecutive ranks on one host, then an exscan of the runs' totals.

    The last rank of each run takes part in the exscan, and sends its result to the other ranks of its run. All ranks
    combine this result with their prefix within the run. h is the number of runs: one for each host if ranks are
    numbered host by host.

    For a group of any size, n bytes of data, h > 1 and d = 1 + ceil(log2 (h-1)): d + 2 rounds, two of them within
    hosts. To ranks of its own host, a rank sends at most n bytes; the last rank of a run also sends at most n d bytes
    to other hosts. If a message between hosts costs alpha and its byte beta, the time is (1 + ceil(log2 (h-1))) (alpha
    + n beta).
    """
    b = Builder("scan", "hierarchical_doubling", rank, size, grid=(1, 1))
    run, lasts, number = _place(rank, layout)
    at = run.index(rank)
    _to_the_rest(b, run, at)
    mine = b.inp()
    if at > 0:
        mine = b.out() if number == 0 else b.like(b.inp())
        b.reduce(mine, *run[:at], b.inp())
    if number > 0:
        b.reduce(b.out(), _from_before(b, run, rank, lasts, number, mine), mine)
        return b.build()
    if rank == run[-1]:
        _exclusive(b, lasts, 0, mine)
    b.copy(b.out(), mine)
    return b.build()


@algorithm("exscan", name="hierarchical_doubling", hosts=True, in_place=True, uneven=True, in_order=True)
def hierarchical_doubling_exscan(rank: int, size: int, layout: Layout) -> Schedule:
    """Exscan: an exscan within each run of consecutive ranks on one host, then an exscan of the runs' totals.

    The last rank of each run takes part in the second exscan, and sends its result to the other ranks of its run. All
    ranks combine this result with their prefix within the run. h is the number of runs: one for each host if ranks are
    numbered host by host.

    For a group of any size, n bytes of data, h > 1 and d = 1 + ceil(log2 (h-1)): d + 2 rounds, two of them within
    hosts. To ranks of its own host, a rank sends at most n bytes; the last rank of a run also sends at most n d bytes
    to other hosts. If a message between hosts costs alpha and its byte beta, the time is (1 + ceil(log2 (h-1))) (alpha
    + n beta).
    """
    b = Builder("exscan", "hierarchical_doubling", rank, size, grid=(1, 1))
    run, lasts, number = _place(rank, layout)
    at = run.index(rank)
    _to_the_rest(b, run, at)
    speaks = rank == run[-1] and number + 1 < len(lasts)
    beside: Chunk | None = None
    if at > 0:
        beside = b.out() if number == 0 and not speaks else b.like(b.inp())
        b.recv(run[0], beside) if at == 1 else b.reduce(beside, *run[:at])
    mine = b.inp()
    if speaks and beside is not None:
        mine = b.like(b.inp())
        b.reduce(mine, beside, b.inp())
    if number == 0:
        if speaks:
            _exclusive(b, lasts, 0, mine)
        if beside is not None:
            b.copy(b.out(), beside)
        return b.build()
    before = _from_before(b, run, rank, lasts, number, mine)
    if beside is not None:
        b.reduce(b.out(), before, beside)
    elif isinstance(before, Chunk):
        b.copy(b.out(), before)
    else:
        b.recv(before, b.out())
    return b.build()
