"""allreduce_many: results are those of one allreduce for each array, and lists that differ between ranks are refused.

Invariant: expected values are computed here, from every rank's arrays.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import collectives
from collectives import Communicator
from collectives.arrays.recycle import SMALLEST, Recycler
from collectives.calls.fusion import parts
from tests.collectives.groups import outcomes, ranks

SHAPES = [(3, 5), (), (70_000,), (0,), (200, 1000), (17,), (2, 3, 4), (300_000,), (1,)]
DTYPES = [np.float32, np.float64, ml_dtypes.bfloat16, np.int64]


def arrays(rank: int) -> list[Any]:
    """Small whole numbers, whose sums are exact in every dtype."""
    random = np.random.default_rng(rank)
    return [
        random.integers(0, 8, shape).astype(DTYPES[i % len(DTYPES)]) if shape else np.array(rank + 1.0, np.float64)
        for i, shape in enumerate(SHAPES)
    ]


def expected(size: int) -> list[Any]:
    return [sum(each[1:], each[0]) for each in zip(*(arrays(rank) for rank in range(size)), strict=True)]


def check(found: list[Any], size: int) -> None:
    for mine, right in zip(found, expected(size), strict=True):
        assert type(mine) is np.ndarray and mine.dtype == right.dtype and mine.shape == np.shape(right)
        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
def test_sums(transport: str, size: int, bucket_bytes: int) -> None:
    def body(comm: Communicator) -> None:
        mine = arrays(comm.rank)
        kept = [x.copy() for x in mine]
        first = comm.allreduce_many(mine, bucket_bytes=bucket_bytes)
        check(first, size)
        second = comm.allreduce_many_async(mine, bucket_bytes=bucket_bytes)
        third = comm.allreduce_many_async(mine, bucket_bytes=bucket_bytes)
        check(third.result(), size)
        check(second.result(), size)
        check(first, size)  # nobody wrote there meanwhile
        for x, y in zip(mine, kept, strict=True):
            np.testing.assert_array_equal(x, y)
        outs = [np.empty_like(x) for x in mine]
        found = comm.allreduce_many(mine, out=outs, bucket_bytes=bucket_bytes)
        assert all(x is y for x, y in zip(found, outs, strict=True))
        check(outs, size)
        found = comm.allreduce_many(mine, out=mine, bucket_bytes=bucket_bytes)
        assert all(x is y for x, y in zip(found, mine, strict=True))
        check(mine, size)

    ranks(size, body, transport=transport)


@pytest.mark.parametrize("algorithm", ["ring", "one_shot", "two_shot", "recursive_doubling"])
def test_each_algorithm_in_place_and_not(algorithm: str) -> None:
    def body(comm: Communicator) -> None:
        mine = arrays(comm.rank)
        check(comm.allreduce_many(mine, algorithm=algorithm), 4)
        check(comm.allreduce_many(mine, out=mine, algorithm=algorithm), 4)

    ranks(4, body)


def test_average_and_other_ops() -> None:
    def body(comm: Communicator) -> None:
        x, y = np.arange(5.0) * (comm.rank + 1), np.full((2, 2), comm.rank, np.float32)
        a, b = comm.allreduce_many([x, y], "avg")
        np.testing.assert_array_equal(a, np.arange(5.0) * 1.5)
        np.testing.assert_array_equal(b, np.full((2, 2), 0.5, np.float32))
        a, b = comm.allreduce_many((x, y), op="max")
        np.testing.assert_array_equal(a, np.arange(5.0) * 2)
        assert comm.allreduce_many([]) == []
        (truth,) = comm.allreduce_many([np.array([0, 2, 0])], "lor")
        assert truth.tolist() == [0, 1, 0]

    ranks(2, body)
    with collectives.init() as alone:
        (truth,) = alone.allreduce_many([np.array([0, 2, 0])], "lor")
        assert truth.tolist() == [0, 1, 0]


def test_the_bits_of_an_average_are_the_same_everywhere_however_it_travels() -> None:
    def body(comm: Communicator) -> list[bytes]:
        random = np.random.default_rng(comm.rank)
        xs = [random.standard_normal(n).astype(np.float32) for n in (7, 1000, 200_000)]
        return [x.tobytes() for x in comm.allreduce_many(xs, "avg")]

    found = ranks(4, body, transport="shm")
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    "other",
    [
        [np.zeros(3), np.zeros(5)],
        [np.zeros(5), np.zeros((1, 3))],
        [np.zeros(8)],
        [np.zeros(5), np.zeros(3), np.zeros(0)],
        [np.zeros(5, np.float32), np.zeros(3, np.float32)],
    ],
)
def test_lists_that_differ(other: list[Any]) -> None:
    def body(comm: Communicator) -> None:
        comm.allreduce_many([np.zeros(5), np.zeros(3)] if comm.rank == 0 else other)

    for outcome in outcomes(2, body):
        assert isinstance(outcome.error, collectives.DesyncError), outcome
        assert "in another list of arrays" in str(outcome.error)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c: c.allreduce_many(np.zeros(3)), TypeError, "list or tuple"),
        (lambda c: c.allreduce_many([np.zeros(3), "x"]), TypeError, "array 1 of the list"),
        (
            lambda c: c.allreduce_many([np.zeros(3)], out=[np.zeros(4)]),
            ValueError,
            "array 0 of the list: out has shape",
        ),
        (lambda c: c.allreduce_many([np.zeros(3)], out=[]), ValueError, "out has 0 arrays, but there are 1"),
        (lambda c: c.allreduce_many([np.zeros(3)] * 2, op="band"), TypeError, "band"),
        (lambda c: c.allreduce_many([np.zeros(3)] * 2, op="no"), ValueError, "unknown op"),
        (lambda c: c.allreduce_many([np.zeros(3)] * 2, algorithm="no"), ValueError, "no"),
        (lambda c: c.allreduce_many([np.zeros(3)] * 2, bucket_bytes=0), ValueError, "bucket_bytes is 0"),
        (lambda c: c.allreduce_many([np.zeros(3)] * 2, bucket_bytes="1M"), TypeError, "bucket_bytes must be an int"),
        (lambda c: c.allreduce_many([np.zeros(3)] * 2, timeout=-1), ValueError, "timeout"),
    ],
)
def test_wrong_arguments(call: Any, error: type[Exception], words: str) -> None:
    """Refused before anything is sent: the next call finds the group as it was."""

    def body(comm: Communicator) -> None:
        with pytest.raises(error, match=words):
            call(comm)
        check(comm.allreduce_many(arrays(comm.rank)), 2)

    ranks(2, body)


def test_results_that_share_memory() -> None:
    memory = np.zeros(8)
    with collectives.init() as comm:
        with pytest.raises(ValueError, match=r"results of arrays 0 and 2 .* share memory"):
            comm.allreduce_many([np.zeros(4)] * 3, out=[memory[:4], np.zeros(4), memory[2:6]])
        with pytest.raises(ValueError, match=r"array 1 .* shares memory with the result of array 0"):
            comm.allreduce_many([np.zeros(4), memory[:4]], out=[memory[:4], np.zeros(4)])
        with pytest.raises(ValueError, match=r"overlap in part"):
            comm.allreduce_many([memory[:4]], out=[memory[2:6]])


def test_memory_of_results_is_used_again_once_nobody_holds_them() -> None:
    recycler = Recycler()
    size = SMALLEST // 4
    first = recycler.empty((size,), np.dtype(np.float32))
    address = first.ctypes.data
    assert address % 64 == 0
    part = first[1:].reshape(-1, 1)
    del first
    second = recycler.empty((size,), np.dtype(np.float32))
    assert second.ctypes.data != address  # a view is all that is left of the first, and enough
    del part
    third = recycler.empty((size // 2, 1), np.dtype(np.float64))
    assert third.ctypes.data == address
    addresses = {second.ctypes.data, address}
    del second, third
    fourth, fifth = (recycler.empty((size,), np.dtype(np.int32)) for _ in range(2))
    assert {fourth.ctypes.data, fifth.ctypes.data} == addresses


def test_no_more_memory_is_kept_than_was_in_use() -> None:
    recycler = Recycler()
    for size in range(SMALLEST, SMALLEST + 50):
        recycler.empty((size,), np.dtype(np.uint8))
        assert recycler.kept <= SMALLEST + 50


def test_results_are_not_written_again_while_somebody_holds_them() -> None:
    def body(comm: Communicator) -> None:
        held = []
        for step in range(6):
            (result,) = comm.allreduce_many([np.full(SMALLEST, float(step))])
            held.append(result[5:])
            del result
            held = held[-3:]
            assert [x[0] for x in held] == [2.0 * s for s in range(max(0, step - 2), step + 1)]

    ranks(2, body)


def test_what_travels_together() -> None:
    def form(*sizes: int, dtype: Any = np.float32) -> tuple[tuple[tuple[int, ...], Any], ...]:
        return tuple(((n,), np.dtype(dtype)) for n in sizes)

    def members(*args: Any) -> list[tuple[int, ...]]:
        return [part.members for part in parts(*args)]

    assert members(form(10, 10, 10), 80) == [(0, 1), (2,)]
    assert members(form(10, 30, 10), 100) == [(1,), (0, 2)]  # one as large as a bucket goes at once
    assert members(form(1, 1 << 20, 1), 25 << 20) == [(1,), (0, 2)]  # and so does one that is worth it
    assert members((*form(4), *form(4, dtype=np.float64), *form(4)), 1000) == [(0, 2), (1,)]
    assert [part.starts for part in parts(form(3, 0, 4), 1000)] == [(0, 3)]


@pytest.mark.parametrize("size", [2, 3])
def test_lists_of_all_kinds_at_once(size: int) -> None:
    """Ordinary and shared arrays of any lengths, in place and not, several calls in progress."""

    def array(rank: int, number: int, n: int) -> Any:
        return ((np.arange(n) * 7 + number * 13 + rank * 5) % 11).astype(DTYPES[number % 2])

    def body(comm: Communicator) -> None:
        random = np.random.default_rng(7)  # the same on every rank
        for _ in range(40):
            under_way = []
            for _ in range(random.integers(1, 5)):
                lengths = [int(10**power) for power in random.uniform(0, 5.5, random.integers(1, 9))]
                shared = random.integers(2, size=(size, len(lengths)))[comm.rank]
                right = [sum(array(rank, i, n) for rank in range(size)) for i, n in enumerate(lengths)]
                xs = []
                for i, n in enumerate(lengths):
                    x = array(comm.rank, i, n)
                    if shared[i]:
                        place = comm.empty(n, x.dtype)
                        place[...] = x
                        x = place
                    xs.append(x)
                out = xs if random.integers(2) else None
                bucket = int(10 ** random.uniform(2, 7))
                if random.integers(2):
                    under_way.append((comm.allreduce_many_async(xs, out=out, bucket_bytes=bucket), right))
                else:
                    comm.allreduce_many(xs, out=xs, bucket_bytes=bucket)
                    for x, y in zip(xs, right, strict=True):
                        np.testing.assert_array_equal(x, y)
            for work, right in under_way:
                for x, y in zip(work.result(), right, strict=True):
                    np.testing.assert_array_equal(x, y)

    ranks(size, body, transport="shm")
