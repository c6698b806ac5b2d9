"""Ordinary arrays that ranks of one host add up in one place: what comes of it, whoever brings which memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from collectives import Communicator, DesyncError, PeerLost
from tests.collectives.groups import ranks

SIZES = (1023, 1024, 4097, 70_001, 300_000)  # of float32, around the smallest that is pooled, and in several pieces


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_get_the_same_bits_every_time(size: int) -> None:
    def body(comm: Communicator) -> list[bytes]:
        rng = np.random.default_rng(comm.rank)
        found = []
        for n in SIZES:
            x = rng.standard_normal(n).astype(np.float32)
            once, again = (comm.allreduce(x, op, algorithm="two_shot").tobytes() for op in ("sum", "sum"))
            assert once == again
            exact = comm.allreduce(x.astype(np.float64), algorithm="one_shot")
            assert np.allclose(np.frombuffer(once, np.float32), exact, rtol=1e-5, atol=1e-5)
            found.append(once)
        return found

    assert len({tuple(value) for value in ranks(size, body, transport="shm")}) == 1


@pytest.mark.parametrize("op", ["sum", "avg", "max", "prod"])
def test_every_op_in_and_out_of_place(op: str) -> None:
    def body(comm: Communicator) -> None:
        for n in SIZES:
            everyones = [np.arange(n) % (3 + r) + 1.0 for r in range(comm.size)]
            total = {"sum": sum(everyones), "avg": sum(everyones) / 3, "max": np.max(everyones, 0)}
            expected = total.get(op, np.prod(everyones, 0))
            x = everyones[comm.rank].copy()
            assert np.allclose(comm.allreduce(x, op, algorithm="two_shot"), expected)
            assert np.array_equal(x, everyones[comm.rank])
            comm.allreduce(x, op, out=x, algorithm="two_shot")
            assert np.allclose(x, expected)

    ranks(3, body, transport="shm")


@pytest.mark.parametrize("size", [2, 3])
def test_only_some_in_place(size: int) -> None:
    """Who copies out through the caches, and who around them, does not change what the pieces are."""

    def body(comm: Communicator) -> None:
        for n in (*SIZES, 1_500_001):
            everyones = [np.arange(n, dtype=np.float32) % (3 + r) for r in range(size)]
            x = everyones[comm.rank].copy()
            for turn in range(3):
                out = x if (comm.rank + turn) % 2 else np.empty_like(x)
                assert np.array_equal(comm.allreduce(x, out=out, algorithm="two_shot"), sum(everyones))
                x[:] = everyones[comm.rank]

    ranks(size, body, transport="shm")


def test_short_floats_are_rounded_once() -> None:
    def body(comm: Communicator) -> None:
        for dtype in (np.float16, ml_dtypes.bfloat16):
            # 1 + 2**-12 + 2**-12 rounds to 1 at each addition, and to more if it is rounded in the end.
            small = 2.0 ** (-11 if dtype == np.float16 else -8)
            x = np.full(5000, 1.0 if comm.rank == 0 else small, dtype)
            expected = np.asarray(1.0 + 2 * small, dtype)
            assert np.array_equal(comm.allreduce(x, algorithm="two_shot"), np.full(5000, expected))

    ranks(3, body, transport="shm")


@pytest.mark.parametrize("size", [2, 4])
def test_one_that_is_not_pooled_lets_nobody_pass(size: int) -> None:
    """It is over before those that it is behind; what comes after it is still behind those."""

    def body(comm: Communicator) -> None:
        large = [np.arange(300_000.0) % (7 + i) + comm.rank for i in range(3)]
        small = comm.empty(2000)
        small[:] = 1
        expected = [(np.arange(300_000.0) % (7 + i)) * size + sum(range(size)) for i in range(3)]
        outs = [np.empty(300_000) for _ in large]
        for _ in range(60):
            works = []
            for x, out in zip(large, outs, strict=True):
                works.append(comm.allreduce_async(x, out=out, algorithm="two_shot"))
                works.append(comm.allreduce_async(small, "max", out=small, algorithm="two_shot"))
            for work in works:
                work.wait()
            for out, right in zip(outs, expected, strict=True):
                assert np.array_equal(out, right)
                out[:] = 0

    ranks(size, body, transport="shm", timeout=10.0)


@pytest.mark.parametrize("size", [2, 4])
def test_arrays_of_both_kinds_in_any_mixture(size: int) -> None:
    def body(comm: Communicator) -> None:
        n = 50_000
        for round_ in range(12):
            shared = (round_ >> comm.rank & 1) == 1
            x = comm.empty(n) if shared else np.empty(n, np.float32)
            out = comm.empty(n) if shared and round_ % 3 else np.empty(n, np.float32)
            x[:] = np.arange(n) % 97 + comm.rank
            comm.allreduce(x, out=out, algorithm="two_shot")
            assert np.array_equal(out, np.arange(n) % 97 * float(size) + sum(range(size)))

    ranks(size, body, transport="shm")


def test_many_at_a_time() -> None:
    def body(comm: Communicator) -> None:
        arrays = [np.full(n, comm.rank + 1.0, np.float32) for n in (40_000, 10, 2000, 90_000, 1, 5000) * 4]
        works = [comm.allreduce_async(x, out=x, algorithm=("two_shot", "auto")[i % 2]) for i, x in enumerate(arrays)]
        for x, work in zip(arrays, works, strict=True):
            work.wait()
            assert np.array_equal(x, np.full(x.shape, 6.0))

    ranks(3, body, transport="shm")


def test_another_count_on_one_rank() -> None:
    def body(comm: Communicator) -> str:
        with pytest.raises((DesyncError, PeerLost)) as caught:
            comm.allreduce(np.ones(100_000 + (comm.rank == 1), np.float32), algorithm="two_shot")
        return str(caught.value)

    reported = ranks(3, body, transport="shm")
    assert "100000" in reported[1] and "100001" in reported[1]
