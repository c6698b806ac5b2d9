"""Averages of integers: their sum, which wraps around, divided by the number of ranks and rounded towards zero.

Invariant: expected values are computed here, in Python's integers, from every rank's arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectives import Communicator, algorithms
from tests.collectives.conformance.reference import SIGNED, UNSIGNED
from tests.collectives.groups import ranks

DTYPES = [*SIGNED, *UNSIGNED]


def inputs(dtype: np.dtype[Any], size: int, count: int) -> list[Any]:
    """Each rank's array: the ends of the dtype, numbers beside them, small ones of both signs, and random ones."""
    info = np.iinfo(dtype)
    ends = [info.min, info.max, info.max - 1, 0, 1, 7, *([-1, -7, info.min + 1] if info.min else [])]
    found = []
    for rank in range(size):
        random = np.random.default_rng([rank, count])
        x = random.integers(info.min, info.max, count, dtype, endpoint=True)
        x[: count // 2] = np.resize(np.array(ends, dtype), count // 2)
        if rank:
            x[::3] = rank
        found.append(x)
    return found


def average(arrays: list[Any]) -> Any:
    info, size = np.iinfo(arrays[0].dtype), len(arrays)
    totals = [sum(map(int, column)) for column in zip(*arrays, strict=True)]
    wrapped = [(total - info.min) % (1 << info.bits) + info.min for total in totals]
    return np.array([(abs(x) // size) * (-1 if x < 0 else 1) for x in wrapped], arrays[0].dtype)


def test_what_is_expected() -> None:
    first, second = np.array([-7, 127, -128, -128], np.int8), np.array([0, 127, -1, -128], np.int8)
    assert average([first, second]).tolist() == [-3, -1, 63, 0]


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_every_call_that_reduces(size: int, transport: str) -> None:
    def body(comm: Communicator) -> None:
        for dtype in DTYPES:
            everyones = inputs(dtype, size, 24 * size)
            mine, expected = everyones[comm.rank], average(everyones)
            kept = mine.copy()
            parts = np.split(expected, size)
            np.testing.assert_array_equal(comm.allreduce(mine, "avg"), expected)
            np.testing.assert_array_equal(comm.allreduce_async(mine, "avg").result(), expected)
            np.testing.assert_array_equal(comm.allreduce_plan(mine, "avg")(), expected)
            np.testing.assert_array_equal(comm.reduce_scatter(mine, "avg"), parts[comm.rank])
            counts = [0] * (size - 1) + [24 * size]
            whole = comm.reduce_scatterv(mine, counts, "avg")
            np.testing.assert_array_equal(whole, expected if comm.rank == size - 1 else expected[:0])
            on_root = comm.reduce(mine, "avg", root=size - 1)
            assert (on_root is None) == (comm.rank != size - 1)
            np.testing.assert_array_equal(expected if on_root is None else on_root, expected)
            for found in comm.allreduce_many([mine, mine[:5]], "avg", bucket_bytes=1 << 10):
                np.testing.assert_array_equal(found, expected[: found.size])
            np.testing.assert_array_equal(mine, kept)
            assert comm.allreduce(mine, "avg", out=mine) is mine
            np.testing.assert_array_equal(mine, expected)

    ranks(size, body, transport=transport)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_algorithm_divides_once(transport: str) -> None:
    """Also those of pieces, and those that add up in one place."""

    def body(comm: Communicator) -> None:
        for count in (12, 30_000):
            everyones = inputs(np.dtype(np.int32), comm.size, count)
            expected = average(everyones)
            for name, part in (
                ("allreduce", expected),
                ("reduce", expected if comm.rank == 0 else None),
                ("reduce_scatter", np.split(expected, comm.size)[comm.rank]),
            ):
                for one in algorithms.algorithms(name, comm.size):
                    found = getattr(comm, name)(everyones[comm.rank], "avg", algorithm=one.name)
                    assert (found is None) == (part is None)
                    if part is not None:
                        np.testing.assert_array_equal(found, part, err_msg=f"{name} {one.name} {count}")

    ranks(4, body, transport=transport)


@pytest.mark.parametrize("size", [2, 3])
def test_results_that_go_around_the_caches(size: int) -> None:
    """The large ones of ranks of one host."""
    count = (13 << 20) // 8 + 5

    def body(comm: Communicator) -> None:
        x = np.arange(count, dtype=np.int64) * (-3 if comm.rank else 1)
        total = (4 - 3 * size) * np.arange(count, dtype=np.int64)
        found = comm.allreduce(x, "avg", algorithm="two_shot")
        np.testing.assert_array_equal(found, -(-total // size))

    ranks(size, body, transport="shm")


@pytest.mark.parametrize("call", ["allreduce", "reduce", "reduce_scatter", "allreduce_plan", "allreduce_async"])
def test_booleans_have_none(call: str) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(TypeError, match="'avg' has no meaning for dtype bool; these have: sum, "):
            getattr(comm, call)(np.ones(comm.size, bool), "avg")
        comm.barrier()

    ranks(2, body)
