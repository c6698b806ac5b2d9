"""Long allreduces over sockets of one machine, which go from one section of the vector to the next."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator
from collectives.algorithms import registry
from collectives.arrays.array import dtype_names
from collectives.calls import prepare
from collectives.calls.prepare import Shape
from tests.collectives.groups import nothing_left, ranks

SHORT = 4 << 10  # bytes of a section in these tests


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "SECTION", SHORT)


def sections(comm: Communicator, dtype: str, count: int) -> int:
    shape = Shape("allreduce", np.dtype(dtype), count, count, count)
    return comm._calls.prepare.collective(shape, "auto").operation.sections


def test_their_number_depends_on_the_bytes() -> None:
    most = prepare.SECTION

    def body(comm: Communicator) -> list[int]:
        return [
            *(sections(comm, "float32", n // 4) for n in (0, 4, most, most + 4, 2 * most, 2 * most + 4)),
            sections(comm, "uint8", 3 * most),
            sections(comm, "complex128", 3 * most // 16),
        ]

    assert ranks(2, body, transport="tcp") == [[1, 1, 1, 2, 2, 3, 3, 3]] * 2
    assert ranks(2, body, transport="inproc") == [[1] * 8] * 2


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_algorithm_and_place_is_right(size: int) -> None:
    counts = [SHORT // 8, SHORT // 8 + 1, 1531, 5 * SHORT // 8, 4099]
    names = [a.name for a in registry.algorithms("allreduce", size)]

    def body(comm: Communicator) -> None:
        for name in names:
            for n in counts:
                x = np.arange(n) * (comm.rank + 1)
                expected = np.arange(n) * (size * (size + 1) // 2)
                assert np.array_equal(comm.allreduce(x, algorithm=name), expected), (name, n)
                assert np.array_equal(x, np.arange(n) * (comm.rank + 1)), (name, n)
                assert comm.allreduce(x, out=x, algorithm=name) is x
                assert np.array_equal(x, expected), (name, n)

    with nothing_left():
        ranks(size, body, transport="tcp")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("dtype", [str(d) for d in dtype_names()])
def test_every_dtype_is_right(dtype: str) -> None:
    n = 3 * SHORT // np.dtype(dtype).itemsize + 1
    values = np.random.default_rng(1).integers(0, 2, (3, n))

    def body(comm: Communicator) -> None:
        x = values[comm.rank].astype(dtype)
        assert np.array_equal(comm.allreduce(x, "prod"), values.prod(axis=0).astype(dtype))

    ranks(3, body, transport="tcp")


@pytest.mark.usefixtures("short")
def test_others_under_way_wait_for_the_last_section() -> None:
    def body(comm: Communicator) -> None:
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        got = np.empty(7000)
        works: list[Any] = []
        for i in range(4):
            works.append(comm.allreduce_async(np.arange(2000.0) + i))
            works.append(comm.broadcast_async(np.full(3000, float(comm.rank + i)), root=i % 3))
            works.append(comm.allreduce_async(np.full(5 + i, 1.0)))
            works.append(comm.allgather_async(np.full(900, comm.rank + i)))
        if comm.rank == 0:
            comm.send(np.full(7000, float(comm.rank)), right)
            comm.recv(got, left)
        else:
            comm.recv(got, left)
            comm.send(np.full(7000, float(comm.rank)), right)
        assert np.all(got == left)
        for i in range(4):
            long, reported, little, gathered = (w.result() for w in works[4 * i : 4 * i + 4])
            assert np.array_equal(long, 3 * (np.arange(2000.0) + i))
            assert np.all(reported == i % 3 + i)
            assert np.all(little == 3)
            assert np.array_equal(gathered, np.repeat(np.arange(3) + i, 900).reshape(3, 900))

    ranks(3, body, transport="tcp")


@pytest.mark.usefixtures("short")
def test_the_same_memory_again_waits_for_all_sections() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(10_000)
        works = [comm.allreduce_async(x, out=x) for _ in range(5)]
        for work in works:
            work.wait()
        assert np.all(x == 2**5)

    ranks(2, body, transport="tcp")


@pytest.mark.usefixtures("short")
def test_a_peer_that_stays_away_is_named() -> None:
    over = threading.Event()

    def body(comm: Communicator) -> None:
        x = np.ones(10_000)
        comm.allreduce(x)
        if comm.rank == 0:
            with pytest.raises(collectives.OpTimeout, match=r"allreduce.* waiting for rank 1"):
                comm.allreduce(x, timeout=0.2)
            over.set()
        assert over.wait(30)

    ranks(2, body, transport="tcp")


@pytest.mark.usefixtures("short")
def test_ranks_that_disagree_on_the_length_are_told() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(collectives.CollectiveError, match=r"9000|9500"):
            comm.allreduce(np.ones(9_000 + 500 * comm.rank))

    ranks(2, body, transport="tcp")
