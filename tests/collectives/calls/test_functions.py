"""Reductions by a function of the caller's: in order, with the same bits everywhere, and refused in time."""

from __future__ import annotations

import threading
import zlib
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Aborted, Communicator, DesyncError, Op, PeerLost
from collectives.algorithms import algorithms
from collectives.calls.functions import _LONG, _SHORT
from collectives.schedule.form import Recv, Reduce, Send
from collectives.schedule.layout import apart
from tests.collectives.groups import outcomes, ranks

COLLECTIVES = ("allreduce", "reduce", "scan", "exscan")


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def shears(rank: int) -> Any:
    """Matrices whose products depend on their order."""
    return np.array([[1, rank + 1], [rank % 2, 1]], np.int64)


def product(first: int, last: int) -> Any:
    result = np.eye(2, dtype=np.int64)
    for rank in range(first, last):
        result = result @ shears(rank)
    return result


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("transport", ["inproc", "tcp"])
def test_products_of_matrices_in_the_order_of_ranks(transport: str, size: int) -> None:
    op = Op(matmul, identity=0)

    def body(comm: Communicator) -> None:
        x, rank = shears(comm.rank), comm.rank
        assert np.array_equal(comm.allreduce(x, op), product(0, size))
        for root in range(size):
            got = comm.reduce(x, op, root)
            assert np.array_equal(got, product(0, size)) if rank == root else got is None
        assert np.array_equal(comm.scan(x, op), product(0, rank + 1))
        before = comm.exscan(x, op)
        assert np.array_equal(before, product(0, rank) if rank else np.zeros((2, 2)))
        blocks = np.stack([shears(rank + r) for r in range(size)])
        expected = np.linalg.multi_dot([np.eye(2), np.eye(2), *(shears(r + rank) for r in range(size))])
        assert np.array_equal(comm.reduce_scatter(blocks, Op(np.matmul, elementwise=False))[0], expected)
        counts = [r % 3 for r in range(size)]
        rows = np.stack([shears(rank)] * sum(counts)) if sum(counts) else np.zeros((0, 2, 2), np.int64)
        mine = comm.reduce_scatterv(rows, counts, op)
        assert mine.shape == (counts[rank], 2, 2) and (mine == product(0, size)).all()
        assert np.array_equal(x, shears(rank))

    ranks(size, body, transport=transport)


@pytest.mark.parametrize("n", [1, 1000, 100_000])
@pytest.mark.parametrize("commutative", [True, False])
def test_the_same_bits_on_every_rank(n: int, commutative: bool) -> None:
    """Sums of values of very different sizes depend on the order in which they are made."""

    def body(comm: Communicator) -> int:
        random = np.random.default_rng(comm.rank)
        x = (random.normal(size=n) * 10.0 ** random.integers(-8, 8, n)).astype(np.float32)
        got = comm.allreduce(x, Op(np.add, commutative=commutative))
        return zlib.crc32(got.tobytes())

    assert len(set(ranks(5, body))) == 1


def test_the_function_runs_in_the_thread_that_calls() -> None:
    seen: set[int] = set()

    def body(comm: Communicator) -> None:
        mine = threading.get_ident()

        def function(a: Any, b: Any) -> Any:
            seen.add(threading.get_ident())
            assert threading.get_ident() == mine
            with pytest.raises(ValueError, match="read-only"):
                a[...] = 0
            return a + b

        work = comm.allreduce_async(np.ones(3), Op(function))
        assert work.done() and work.wait()[0] == comm.size

    ranks(3, body)
    assert len(seen) == 3


def test_it_keeps_its_place_among_other_calls() -> None:
    def body(comm: Communicator) -> None:
        x = np.arange(50_000.0) + comm.rank
        total = comm.size * np.arange(50_000.0) + sum(range(comm.size))
        for _ in range(5):
            works = [comm.allreduce_async(x) for _ in range(3)]
            assert np.array_equal(comm.allreduce(x, np.add), total)
            assert all(np.array_equal(work.wait(), total) for work in works)
            assert np.array_equal(comm.scan(x, np.add, out=x.copy())[:1], [sum(range(comm.rank + 1))])
            comm.barrier()

    for transport in ("inproc", "shm", "tcp"):
        ranks(4, body, transport=transport)


def test_a_ufunc_brings_its_identity() -> None:
    def body(comm: Communicator) -> None:
        x = np.full(3, comm.rank + 2.0)
        assert np.array_equal(comm.exscan(x, np.multiply), np.full(3, [1.0, 2.0, 6.0][comm.rank]))
        out = np.full(3, 9.0)
        got = comm.exscan(x, np.maximum, out=out)  # it has none
        assert (got is None and (out == 9).all()) if comm.rank == 0 else got is out
        within = comm.exscan(x, np.add, out=x)
        assert within is x and np.array_equal(x, np.full(3, [0.0, 2.0, 5.0][comm.rank]))

    ranks(3, body)


def _wrong_shape(a: Any, b: Any) -> Any:
    return (a + b)[:1]


def _wrong_dtype(a: Any, b: Any) -> Any:
    return (a + b).astype(np.complex128)


def _raises(a: Any, b: Any) -> Any:
    raise ZeroDivisionError("what the function said")


@pytest.mark.parametrize(
    ("op", "error", "message"),
    [
        (_wrong_shape, ValueError, r"op _wrong_shape gives shape \(1,\) for arrays of shape \(4,\)"),
        (_wrong_dtype, TypeError, "op _wrong_dtype gives dtype complex128 for arrays of dtype float64"),
        (_raises, ZeroDivisionError, "what the function said"),
        (3, TypeError, "op must be a name, a function or a collectives.Op, not 3"),
        (None, TypeError, "op must be a name, a function"),
    ],
)
@pytest.mark.parametrize("collective", [*COLLECTIVES, "reduce_scatter"])
def test_what_is_wrong_is_refused_before_anything_is_sent(
    collective: str, op: Any, error: type[Exception], message: str
) -> None:
    def body(comm: Communicator) -> None:
        comm.allreduce(np.ones(3), algorithm="ring")  # links are there
        sent = comm._linked.group.bytes_sent()
        x = np.ones(4 * comm.size if collective == "reduce_scatter" else 4)
        with pytest.raises(error, match=message):
            getattr(comm, collective)(x, op)
        assert comm._linked.group.bytes_sent() == sent
        comm.barrier()

    ranks(2, body)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Op(np.exp), TypeError, "takes 1 arrays and gives 1"),
        (lambda: Op(np.divmod), TypeError, "takes 2 arrays and gives 2"),
        (lambda: Op("sum"), TypeError, "function must be callable, not str"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_op(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_algorithms_that_are_not_right_for_it_are_refused() -> None:
    with collectives.init() as comm:
        with pytest.raises(
            ValueError, match=r"allreduce ring does not run Op\(matmul\); those that do: recursive_doubl"
        ):
            comm.allreduce(np.ones((2, 2)), Op(matmul), algorithm="ring")
        with pytest.raises(ValueError, match="no algorithm 'magic'"):
            comm.allreduce(np.ones((2, 2)), Op(matmul), algorithm="magic")
        for name in ("ring", "halving_doubling_short", "recursive_doubling"):
            comm.allreduce(np.ones(4), Op(np.add, commutative=True), algorithm=name)


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_a_function_that_fails_on_one_rank_leaves_nobody_waiting(transport: str) -> None:
    def body(comm: Communicator) -> None:
        seen = 0

        def function(a: Any, b: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == 2 and comm.rank == 0:  # it was tried once before
                raise ZeroDivisionError("what it said")
            return a + b

        try:
            comm.allreduce(np.ones(3), Op(function))
        except ZeroDivisionError:
            with pytest.raises(Aborted, match=r"op \S*function ended on rank 0 by ZeroDivisionError: what it said"):
                comm.barrier()
            raise

    found = outcomes(3, body, transport=transport, timeout=20.0)
    assert isinstance(found[0].error, ZeroDivisionError)
    for rank in (1, 2):
        with pytest.raises(
            (Aborted, PeerLost), match=r"op \S*function ended on rank 0 by ZeroDivisionError: what it said"
        ):
            raise found[rank].error or AssertionError


MISMATCHES: dict[str, Any] = {
    "another function": lambda c, x: c.allreduce(x, np.add if c.rank else np.maximum),
    "declared otherwise": lambda c, x: c.allreduce(x, Op(np.add, commutative=c.rank > 0)),
    "a name": lambda c, x: c.allreduce(x, "sum" if c.rank else np.add, algorithm="recursive_doubling"),
    "another collective": lambda c, x: c.scan(x, np.add) if c.rank else c.allreduce(x, np.add),
    "another length": lambda c, x: c.allreduce(x[c.rank :], np.add),
    "scan and exscan": lambda c, x: c.scan(x) if c.rank else c.exscan(x),
    "scans of other ops": lambda c, x: c.scan(x, "max" if c.rank else "sum"),
    "other counts": lambda c, x: c.reduce_scatterv(x, [2, 2] if c.rank else [1, 3]),
    "other counts by a function": lambda c, x: c.reduce_scatterv(x, [2, 2] if c.rank else [1, 3], np.add),
}


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
@pytest.mark.parametrize("how", MISMATCHES)
def test_ranks_that_call_different_things_learn_it(transport: str, how: str) -> None:
    def body(comm: Communicator) -> None:
        MISMATCHES[how](comm, np.ones(4))
        comm.barrier()

    found = outcomes(2, body, transport=transport, timeout=20.0)
    errors = [outcome.error for outcome in found]
    assert all(isinstance(error, DesyncError | PeerLost) for error in errors), errors
    assert any(isinstance(error, DesyncError) for error in errors), errors


# --- schedules that are run step by step


@pytest.mark.parametrize("name", sorted(_SHORT))
def test_their_schedules_can_be_run_in_the_order_in_which_they_are_listed(name: str) -> None:
    """Sends go on in the background, all else waits: nobody waits forever, for any number of ranks up to 64."""
    names = {*_SHORT[name], *_LONG.get(name, ())}
    for a in [a for a in algorithms(name) if a.name in names]:
        for size in range(1, 65):
            for root in {0, size // 2, size - 1} if a.contract.rooted else {0}:
                group = [a(rank, size, root, apart(size)) for rank in range(size)]
                at = [0] * size
                sent: dict[tuple[int, int], int] = {}
                taken: dict[tuple[int, int], int] = {}
                moved = True
                while moved:
                    moved = False
                    for rank, schedule in enumerate(group):
                        while at[rank] < len(schedule.steps):
                            step = schedule.steps[at[rank]]
                            sources = [step.peer] if isinstance(step, Recv) else []
                            if isinstance(step, Reduce):
                                sources = list(step.peers)
                            if any(sent.get((s, rank), 0) <= taken.get((s, rank), 0) for s in sources):
                                break
                            for source in sources:
                                taken[source, rank] = taken.get((source, rank), 0) + 1
                            for peer in step.peers if isinstance(step, Send) else ():
                                sent[rank, peer] = sent.get((rank, peer), 0) + 1
                            at[rank] += 1
                            moved = True
                assert at == [len(schedule.steps) for schedule in group], f"{a} of {size} ranks, root {root}"
