"""What a communicator promises beyond right results: arrays of all kinds, memory, repetition, explanations."""

from __future__ import annotations

import math
import sys
import time
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import collectives
from collectives import Communicator
from tests.collectives.arrays.stand_in_cupy import StandInCupy
from tests.collectives.groups import nothing_left, ranks

ONES = np.ones(4, np.float32)


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_memory_from_empty(transport: str) -> None:
    def body(comm: Communicator) -> Any:
        arrays = [comm.empty(3), comm.empty((2, 3), "bfloat16"), comm.empty((), np.int64), comm.empty((0, 4), "bool")]
        assert [(a.shape, a.dtype) for a in arrays] == [
            ((3,), np.float32),
            ((2, 3), ml_dtypes.bfloat16),
            ((), np.int64),
            ((0, 4), np.bool_),
        ]
        for a in arrays:
            a[...] = 1
            assert transport == "tcp" or a.ctypes.data % 64 == 0 or a.size == 0
            expected = np.full(a.shape, 2).astype(a.dtype)
            assert np.array_equal(comm.allreduce(a), expected)
            comm.allreduce(a, out=a)
            assert np.array_equal(a, expected)
        kept = comm.empty(1000)
        kept[...] = 7
        return kept

    with nothing_left():
        kept = ranks(2, body, transport=transport)
        assert all((a == 7).all() for a in kept)
        del kept


def test_what_repeats_is_still_checked() -> None:
    """The short way of a repeated call gives what the long way gives, whatever changes between calls."""

    def body(comm: Communicator) -> None:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        y = np.empty_like(x)
        for _ in range(3):
            assert comm.allreduce(x, out=y) is y
            assert np.array_equal(y, 2 * x)
            assert np.array_equal(comm.allreduce(x), 2 * x)
        assert np.array_equal(comm.allreduce(x.T), 2 * x.T)
        assert np.array_equal(comm.allreduce(np.asfortranarray(x)), 2 * x)
        assert np.array_equal(comm.allreduce(x.reshape(4, 3)), 2 * x.reshape(4, 3))
        assert np.array_equal(comm.allreduce(x, "max"), x)
        x.flags.writeable = False
        assert np.array_equal(comm.allreduce(x, out=y), 2 * y / 2)
        with pytest.raises(ValueError, match="x is read-only"):
            comm.allreduce(x, out=x)
        y.flags.writeable = False
        with pytest.raises(ValueError, match="out is read-only"):
            comm.allreduce(x, out=y)
        big = np.zeros((6, 4), np.float32)
        with pytest.raises(ValueError, match="overlap"):
            comm.allreduce(big[:3], out=big[1:4])
        z = np.ones(3)
        assert comm.broadcast(z, 1) is z
        with pytest.raises(TypeError, match="root must be an int, not bool"):
            comm.broadcast(z, True)

    ranks(2, body)


def test_in_place_through_another_view() -> None:
    def body(comm: Communicator) -> None:
        for algorithm in ("auto", "one_shot", "two_shot", "ring"):
            x = np.arange(1000.0)
            view = x[:]
            for factor in (2, 4, 8):
                assert comm.allreduce(x, out=view, algorithm=algorithm) is view
                assert np.array_equal(x, factor * np.arange(1000.0))

    ranks(2, body)


def test_buffers_and_other_libraries_arrays() -> None:
    def body(comm: Communicator) -> None:
        x = bytearray(b"\x01\x02")
        assert comm.allreduce(x).tolist() == [2, 4]
        assert comm.allreduce(x, out=x) is x
        assert x == b"\x02\x04"
        assert comm.broadcast(memoryview(x), 0).tolist() == [2, 4]
        assert comm.allreduce(np.float32(3)).shape == ()

    ranks(2, body)


def test_device_arrays_come_back_as_device_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = types.ModuleType("cupy")
    cupy.asarray = StandInCupy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def body(comm: Communicator) -> None:
        x = StandInCupy(np.arange(3.0))
        total = comm.allreduce(x)
        assert isinstance(total, StandInCupy)
        assert total.memory.tolist() == [0, 2, 4]
        out = StandInCupy(np.zeros(3))
        assert comm.allreduce(x, out=out) is out
        assert out.memory.tolist() == [0, 2, 4]
        assert comm.allreduce_async(out, out=out).result() is out
        assert out.memory.tolist() == [0, 4, 8]
        assert comm.broadcast(out if comm.rank else x, 0) is (out if comm.rank else x)
        assert out.memory.tolist() == ([0, 1, 2] if comm.rank else [0, 4, 8])
        assert comm.allgatherv(x).memory.shape == (6,)
        gathered = comm.gather(x, 1)
        assert gathered is None if comm.rank == 0 else gathered.memory.shape == (2, 3)
        with pytest.raises(ValueError, match="out is read-only"):
            comm.allreduce(x, out=StandInCupy(np.zeros(3), writable=False))

    ranks(2, body)


def test_a_broadcast_may_come_from_read_only_and_strided_memory() -> None:
    def body(comm: Communicator) -> None:
        source = np.arange(8)[::2]
        source.flags.writeable = False
        x = source if comm.rank == 0 else np.zeros(4, int)
        assert comm.broadcast(x, 0) is x
        assert x.tolist() == [0, 2, 4, 6]

    ranks(2, body)


def test_explain_says_what_runs_and_why() -> None:
    def body(comm: Communicator) -> str:
        return comm.explain("allreduce", 1 << 20)

    first, second = ranks(2, body)
    assert "two_shot: " in first
    assert "1 over inproc" in first
    assert "others" in first and "ring" in first
    assert "rank 0" in first
    assert "rank 1" in second
    assert "send IN" in first
    assert "engine      schedule" in first
    assert "not         board: not all ranks share memory" in first
    assert collectives.init().explain("barrier", 0, np.int8)


def test_more_than_two_gibibytes() -> None:
    """Counts and offsets beyond 31 bits. The sender's pages are never touched, so only one side's take memory."""
    n = 2**31 + 4099

    def body(comm: Communicator) -> int:
        x = np.zeros(n, np.uint8)
        if comm.rank == 0:
            x[-1] = 5
        else:
            x[:: 1 << 20] = 9
        comm.broadcast(x, 0)
        return int(x[-1]) + int(np.count_nonzero(x[:: 1 << 20]))

    assert ranks(2, body, timeout=100.0) == [5, 5]


def test_a_repeated_call_costs_little() -> None:
    """A guard against accidents on the shortest way, far from a measurement: that is the benchmark's."""
    with collectives.init() as comm:
        x, y = np.ones(2, np.float32), np.empty(2, np.float32)
        best = math.inf
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(1000):
                comm.allreduce(x, out=y)
            best = min(best, (time.perf_counter() - start) / 1000)
    assert best < 10e-6
