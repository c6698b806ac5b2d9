"""Dtypes that are moved and not reduced, and the one whose elements have no bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import collectives
from collectives.arrays import array as arrays
from collectives.arrays import dtypes
from collectives.core.communicator import Communicator
from tests.collectives.groups import outcomes, ranks

NARROW = list(dtypes.moved_names())


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.name)
def test_every_collective_that_moves_takes_them(dtype: np.dtype[Any]) -> None:
    def body(comm: Communicator) -> None:
        me, other = comm.rank, 1 - comm.rank
        mine, both = _bytes(dtype, me), [_raw(_bytes(dtype, r)) for r in (0, 1)]
        for _ in range(2):  # the second time without checks
            found = comm.allgather(mine)
            assert found.dtype == dtype and _raw(found) == both[0] + both[1]
            out = np.empty((2, 4), dtype)
            assert comm.allgather(mine, out=out) is out and _raw(out) == both[0] + both[1]
            assert _raw(comm.broadcast(mine.copy(), 1)) == both[1]
            assert _raw(comm.alltoall(mine)) == both[0][2 * me : 2 * me + 2] + both[1][2 * me : 2 * me + 2]
            gathered = comm.gather(mine, 1)
            assert gathered is None if me == 0 else _raw(gathered) == both[0] + both[1]
            received = np.empty(4, dtype)
            for sender in (0, 1):
                comm.send(mine, other) if me == sender else comm.recv(received, sender)
            assert _raw(received) == both[other]
        assert _raw(comm.allgatherv(mine[: 1 + me])) == both[0][:1] + both[1][:2]
        assert _raw(comm.alltoallv(mine, [1, 3])) == (
            both[0][:1] + both[1][:1] if me == 0 else both[0][1:] + both[1][1:]
        )
        scattered = comm.scatter(mine.reshape(2, 2) if me == 1 else None, 1)
        assert scattered.dtype == dtype and _raw(scattered) == both[1][2 * me : 2 * me + 2]
        assert _raw(comm.scatterv(mine if me == 0 else None, [1, 3])) == (both[0][:1] if me == 0 else both[0][1:])

    ranks(2, body)


def _bytes(dtype: np.dtype[Any], rank: int) -> Any:
    return np.array([1, 2, 3, rank], np.uint8).view(dtype)


def _raw(array: Any) -> list[int]:
    return np.asarray(array).view(np.uint8).reshape(-1).tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x: comm.allreduce(x),
        lambda comm, x: comm.allreduce(x, out=x),
        lambda comm, x: comm.reduce(x),
        lambda comm, x: comm.reduce_scatter(x),
        lambda comm, x: comm.allreduce_many([x]),
        lambda comm, x: comm.allreduce_plan(x),
    ],
)
def test_no_collective_that_computes_takes_them(call: Callable[[Communicator, Any], Any]) -> None:
    def body(comm: Communicator) -> None:
        for name, wide in (("float8_e5m2", "float32"), ("int4", "int8"), ("uint4", "uint8")):
            x = np.zeros(4, next(d for d in NARROW if d.name == name))
            with pytest.raises(TypeError, match=rf"{name}, which can be moved .* convert it to {wide} first"):
                call(comm, x)
        comm.barrier()

    ranks(2, body)


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x: comm.allgather(x, algorithm="ring"),
        lambda comm, x: comm.broadcast(x, algorithm="binomial"),
        lambda comm, x: comm.allgatherv(x),
    ],
)
def test_two_dtypes_of_one_size_do_not_match(call: Callable[[Communicator, Any], Any]) -> None:
    def body(comm: Communicator) -> None:
        call(comm, np.zeros(4, NARROW[comm.rank]))
        comm.barrier()

    for outcome in outcomes(2, body, timeout=5.0):
        assert isinstance(outcome.error, collectives.CollectiveError)


def test_float0_goes_through_every_collective() -> None:
    def body(comm: Communicator) -> None:
        x = np.zeros((2, 3), dtypes.FLOAT0)
        for _ in range(2):
            for op in ("sum", "avg", "max"):
                assert _form(comm.allreduce(x, op)) == (2, 3)
            assert comm.allreduce(x, out=x) is x
            assert _form(comm.reduce_scatter(x)) == (1, 3)
            assert _form(comm.allgather(x)) == (2, 2, 3)
            assert comm.broadcast(x) is x
            assert _form(comm.alltoall(x)) == (2, 3)
            found = comm.allreduce_many([np.ones(2), x])
            assert found[0].tolist() == [2, 2] and _form(found[1]) == (2, 3)
        assert _form(comm.allgatherv(x)) == (4, 3)
        assert _form(comm.scatter(x if comm.rank == 0 else None)) == (3,)
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            assert comm.recv(x, 0) is x

    ranks(2, body)


def _form(array: Any) -> Any:
    assert array.dtype == dtypes.FLOAT0
    return array.shape


def test_they_are_named_in_no_other_place() -> None:
    """What `comm.empty` and the hooks make or reduce remains what the engine can reduce."""
    for dtype in (*NARROW, dtypes.FLOAT0):
        with pytest.raises(TypeError, match=r"not reduced|not supported"):
            arrays.dtype_of(dtype)
