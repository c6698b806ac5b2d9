"""`init(deterministic=True)`: the bits of a reduction depend on what ranks bring, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import collectives
from collectives import Communicator, ConfigMismatch
from tests.collectives.groups import outcomes, ranks

TRANSPORTS = ("inproc", "shm", "tcp")
COUNTS = (1, 7, 1 << 10, (1 << 14) + 3)
LONG = 3 << 18  # elements: more than an allreduce works on at a time over tcp
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64)
SIZE = 4


def brought(rank: int, count: int, dtype: Any) -> Any:
    """Values whose sum depends on the order: of all magnitudes and both signs."""
    random = np.random.default_rng(1000 + rank)
    values = random.standard_normal(count) * 10.0 ** random.integers(-3, 3, count)
    return values.astype(dtype)


def in_order(upto: int, count: int, dtype: Any) -> Any:
    """The sum of what ranks 0 to `upto` bring, left to right; narrow floats are added in float32 and rounded once."""
    wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
    total = brought(0, count, dtype).astype(wide)
    for rank in range(1, upto + 1):
        total = total + brought(rank, count, dtype).astype(wide)
    return total.astype(dtype)


def same(found: Any, wanted: Any) -> bool:
    return bool(found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sums_are_taken_in_the_order_of_ranks(transport: str, dtype: Any) -> None:
    def body(comm: Communicator) -> None:
        for count in COUNTS:
            x, wanted = brought(comm.rank, count, dtype), in_order(SIZE - 1, count, dtype)
            assert same(comm.allreduce(x), wanted), count
            assert same(comm.allreduce_async(x).wait(), wanted), count
            y = x.copy()
            comm.allreduce(y, out=y)
            assert same(y, wanted), count
            shared = comm.empty(count, np.dtype(dtype).name)
            shared[:] = x
            assert same(comm.allreduce(shared), wanted), count
            reduced = comm.reduce(x, root=1)
            assert reduced is None or same(reduced, wanted), count
            assert same(comm.scan(x), in_order(comm.rank, count, dtype)), count
            if comm.rank > 0:
                assert same(comm.exscan(x), in_order(comm.rank - 1, count, dtype)), count
            else:
                comm.exscan(x)
            if count % SIZE == 0:
                n = count // SIZE
                assert same(comm.reduce_scatter(x), wanted[comm.rank * n : (comm.rank + 1) * n]), count
        many = comm.allreduce_many([brought(comm.rank, count, dtype) for count in COUNTS])
        assert all(same(m, in_order(SIZE - 1, c, dtype)) for m, c in zip(many, COUNTS, strict=True))

    ranks(SIZE, body, transport=transport, deterministic=True)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_long_sum_too(transport: str) -> None:
    wanted = in_order(SIZE - 1, LONG, np.float32)

    def body(comm: Communicator) -> bool:
        return same(comm.allreduce(brought(comm.rank, LONG, np.float32)), wanted)

    assert ranks(SIZE, body, transport=transport, deterministic=True) == [True] * SIZE


@pytest.mark.parametrize("derive", [Communicator.dup, lambda comm: comm.split(0)], ids=["dup", "split"])
def test_communicators_made_of_it_are_deterministic_too(derive: Callable[[Communicator], Communicator]) -> None:
    def body(comm: Communicator) -> None:
        with derive(comm) as child:
            assert same(child.allreduce(brought(comm.rank, 5000, np.float32)), in_order(SIZE - 1, 5000, np.float32))
            assert "init(deterministic=True)" in child.explain("allreduce", 1 << 20)

    ranks(SIZE, body, transport="shm", deterministic=True)


def test_neither_tables_nor_calibration_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "allreduce:ring")
    monkeypatch.setenv("COLLECTIVES_TABLE", "/nowhere")
    monkeypatch.setenv("COLLECTIVES_CALIBRATE", "auto")

    def body(comm: Communicator) -> str:
        return comm.explain("allreduce", 1 << 20)

    for text in ranks(2, body, transport="tcp", deterministic=True):
        assert "two_shot: in the order of ranks" in text and "init(deterministic=True)" in text


@pytest.mark.parametrize("more", [{"table": "a.table"}, {"calibrate": "auto"}, {"calibrate": "cached"}])
def test_arguments_that_say_otherwise_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"deterministic=True fixes every choice, so {next(iter(more))}="):
        collectives.init(rank=0, size=1, deterministic=True, **more)


def test_calibrate_off_says_the_same() -> None:
    with collectives.init(rank=0, size=1, deterministic=True, calibrate="off") as comm:
        assert (comm.allreduce(np.ones(3)) == 1.0).all()


def test_it_is_a_bool() -> None:
    with pytest.raises(TypeError, match="deterministic must be a bool, not int"):
        collectives.init(rank=0, size=1, deterministic=1)  # type: ignore[arg-type]


def test_ranks_have_to_agree_on_it() -> None:
    from tests.rendezvous.threads import together

    def rank(number: int) -> None:
        collectives.init(
            "memory://deterministic", rank=number, size=2, deterministic=number == 0, join_timeout=20.0
        ).close()

    found = together([lambda: rank(0), lambda: rank(1)])
    assert any(isinstance(outcome.error, ConfigMismatch) for outcome in found)
    assert "deterministic" in str(next(o.error for o in found if isinstance(o.error, ConfigMismatch)))


def test_without_it_a_large_sum_may_have_other_bits() -> None:
    """Otherwise the tests above would show nothing."""

    def body(comm: Communicator) -> bool:
        x = brought(comm.rank, 1 << 20, np.float32)
        return same(comm.allreduce(x, algorithm="ring"), in_order(SIZE - 1, 1 << 20, np.float32))

    assert outcomes(SIZE, body, transport="tcp")[0].value is False
