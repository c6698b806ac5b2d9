"""Allreduces made ready once: right every time, refused when they can't be, and no longer there than their arrays."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator, Status
from tests.collectives.groups import ranks

ALGORITHMS = ("auto", "one_shot", "ring", "recursive_doubling")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_call_reads_and_writes_the_arrays_as_they_are(algorithm: str) -> None:
    def body(comm: Communicator) -> None:
        for n in (0, 1, 1000, 50_000):
            x = np.empty(n)
            out = np.empty(n)
            apart = comm.allreduce_plan(x, out=out, algorithm=algorithm)
            within = comm.allreduce_plan(x, "max", out=x, algorithm=algorithm)
            for turn in range(4):
                x[:] = np.arange(n) + comm.rank * turn
                assert apart() is out
                assert np.array_equal(out, 3.0 * np.arange(n) + 3 * turn)
                assert (within() if turn < 2 else within.start().wait()) is x
                assert np.array_equal(x, np.arange(n) + 2.0 * turn)

    ranks(3, body)


def test_many_arrays_are_reduced_in_place_in_each_run() -> None:
    def body(comm: Communicator) -> None:
        small, odd, large = np.empty(7), np.empty((3, 5), np.float32), np.empty(100_000)
        counts = np.empty(4, np.int32)
        xs: list[Any] = [small, odd, large, np.empty(0), counts, np.empty(90)]
        plan = comm.allreduce_many_plan(xs)
        other = comm.allreduce_many_plan(xs, "max", bucket_bytes=64)
        for turn in range(4):
            for i, x in enumerate(xs):
                x[...] = i + comm.rank * turn
            if turn == 2:
                plan.start()  # the next run waits for this one
                plan.start().wait()
                sums = [2 * (2 * i + turn) for i in range(len(xs))]
            else:
                assert all(found is x for found, x in zip(plan(), xs, strict=True))
                sums = [2 * i + turn for i in range(len(xs))]
            for x, total in zip(xs, sums, strict=True):
                assert np.array_equal(x, np.full(x.shape, total, x.dtype))
            assert other.start().wait() is not None
            assert [found is x for found, x in zip(plan.out, xs, strict=True)] == [True] * len(xs)
            for x, total in zip(xs, sums, strict=True):
                assert np.array_equal(x, np.full(x.shape, total, x.dtype))

    ranks(2, body)


def test_what_is_no_array_of_its_own_cannot_be_planned_among_many() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="array 1 of the list"):
            comm.allreduce_many_plan([np.ones(2), [1.0]])
        with pytest.raises(ValueError, match="array 0 of the list"):
            comm.allreduce_many_plan([np.ones((4, 4)).T])
        x = np.ones(10)
        with pytest.raises(ValueError, match="share"):
            comm.allreduce_many_plan([x, x[5:]])

    ranks(1, body)


def test_without_out_it_makes_one_array_for_all_calls() -> None:
    def body(comm: Communicator) -> None:
        x = np.full((3, 4), comm.rank, np.int32)
        plan = comm.allreduce_plan(x)
        first = plan()
        assert plan() is first is plan.out
        assert first.shape == (3, 4)
        assert np.array_equal(first, np.full((3, 4), 1))

    ranks(2, body)


def test_plans_and_calls_keep_one_order() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(10)
        plan = comm.allreduce_plan(x)
        works = [comm.allreduce_async(x) for _ in range(5)]
        assert np.array_equal(plan(), 2 * x)
        assert all(work.done() for work in works)
        comm.barrier()
        assert np.array_equal(comm.allreduce(x), plan())

    ranks(2, body)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda c: c.allreduce_plan([1.0, 2.0]), TypeError, "x is list"),
        (lambda c: c.allreduce_plan(np.ones(4), out=[0.0] * 4), TypeError, "out is list"),
        (lambda c: c.allreduce_plan(np.ones((4, 4)).T), ValueError, "not contiguous"),
        (lambda c: c.allreduce_plan(np.ones(8)[::2]), ValueError, "not contiguous"),
        (lambda c: c.allreduce_plan(np.ones(4), out=np.ones(5)), ValueError, "shape"),
        (lambda c: c.allreduce_plan(np.ones(4), out=np.ones(4, np.float32)), (TypeError, ValueError), "float"),
        (lambda c: c.allreduce_plan(np.ones(4), "median"), ValueError, "unknown op"),
        (lambda c: c.allreduce_plan(np.ones(4), algorithm="best"), ValueError, "best"),
        (lambda c: c.allreduce_plan(np.ones(4), timeout=-1), ValueError, "timeout"),
        (lambda c: c.allreduce_plan(np.ones(4))(1), TypeError, "no arguments"),
    ],
)
def test_what_can_not_be_planned(make: Any, error: Any, message: str) -> None:
    with collectives.init() as comm:
        with pytest.raises(error, match=message):
            make(comm)
        assert np.array_equal(comm.allreduce_plan(np.ones(4))(), np.ones(4))  # all is well still


READ_ONLY = np.ones(4)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda c: c.scan_plan([1.0]), TypeError, "x is list"),
        (lambda c: c.scan_plan(np.ones(4), "avg"), ValueError, "scan has no avg"),
        (lambda c: c.broadcast_plan(READ_ONLY), ValueError, "read-only"),
        (lambda c: c.recv_plan([0.0], 0), TypeError, "out is list"),
        (lambda c: c.recv_plan(np.ones(8)[::2]), ValueError, "out is not contiguous"),
        (lambda c: c.sendrecv_plan(np.ones(4), 0, [0.0]), TypeError, "out is list"),
        (lambda c: c.gather_plan(np.ones(8)[::2]), ValueError, "x is not contiguous"),
        (lambda c: c.scatter_plan(None), TypeError, "x is a NoneType"),
        (lambda c: c.reduce_scatterv_plan(np.ones(4), [3]), ValueError, "add up to 3"),
        (lambda c: c.alltoall_plan(np.ones(4), out=np.ones(5)), ValueError, "shape"),
        (lambda c: c.allreduce_plan(np.ones(4), "lor", out=READ_ONLY), ValueError, "read-only"),
    ],
)
def test_what_other_plans_refuse(make: Any, error: Any, message: str) -> None:
    with collectives.init() as comm:
        with pytest.raises(error, match=message):
            make(comm)
        comm.barrier()


def test_a_lone_rank_has_plans_of_logical_ops() -> None:
    with collectives.init() as comm:
        x = np.array([0, 5])
        plan = comm.allreduce_plan(x, "land")
        assert plan().tolist() == [0, 1]
        x[:] = 7, 0
        assert plan().tolist() == plan.start().wait().tolist() == [1, 0]
        within = comm.allreduce_plan(x, "lor", out=x)
        for value in (3, 4):
            x[0] = value
            assert within() is x and x.tolist() == [1, 0]


def test_what_a_plan_receives() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank > 0:
            for n in (3, 1):
                comm.send(np.full(n, comm.rank), 0)
            return
        out, status = np.zeros(3, np.int64), Status()
        plan = comm.recv_plan(out, status=status)
        seen = []
        for turn in range(4):
            assert (plan() if turn % 2 else plan.start().wait()) is out
            assert status.count is not None and (out[: status.count] == status.source).all()
            seen.append((status.source, status.count))
        assert sorted(seen) == [(1, 1), (1, 3), (2, 1), (2, 3)]

    ranks(3, body)


def test_after_the_end_it_says_so() -> None:
    comm = collectives.init()
    plan = comm.allreduce_plan(np.ones(4))
    comm.close()
    with pytest.raises(collectives.Aborted, match="closed"):
        plan()
    with pytest.raises(collectives.Aborted, match="closed"):
        comm.allreduce_plan(np.ones(4))


def test_it_keeps_its_arrays_and_nothing_keeps_it() -> None:
    with collectives.init() as comm:
        x = np.ones(4)
        seen = weakref.ref(x)
        plan = comm.allreduce_plan(x, out=x)
        del x
        assert seen() is not None
        assert np.array_equal(plan(), np.ones(4))
        del plan
        gc.collect()
        assert seen() is None


def test_a_communicator_goes_with_its_last_reference() -> None:
    comm = collectives.init()
    comm.allreduce(np.ones(4))
    shut = comm._shut
    assert shut.alive
    del comm
    assert not shut.alive
