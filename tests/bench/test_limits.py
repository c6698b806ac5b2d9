"""The machine's floors."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack

import numpy as np
import pytest

from collectives import Communicator
from collectives.bench.cases import Case
from collectives.bench.limits import OF_MEMORY, OF_SOCKETS, floors
from collectives.bench.loop import Pace
from collectives.bench.measure import Unsupported
from collectives.bench.ping import Ping
from collectives.bench.sockets import Ring
from tests.collectives.groups import nothing_left, ranks

ALL = (*OF_MEMORY, *OF_SOCKETS)


def case(collective: str = "allreduce", count: int = 100_000, size: int = 3, dtype: str = "float32") -> Case:
    return Case(collective, dtype, np.dtype(dtype).itemsize, "sum", -1, "auto", size, count)


@pytest.mark.parametrize("size", [2, 3])
def test_every_floor(size: int) -> None:
    def body(comm: Communicator) -> dict[str, list[int]]:
        reported = {}
        with ExitStack() as stack:
            for floor in floors(comm, ALL, Ping(comm), stack):
                floor.prepare(case(size=size))
                assert floor.wrong(case(size=size), 1) == 0
                assert 3 <= floor.iterations(Pace(0.001, 3, 10)) <= 10
                taken = floor.turn(3)
                assert all((samples > 0).all() for samples in taken)
                reported[floor.name] = [len(samples) for samples in taken]
                floor.finish()
        return reported

    with nothing_left():
        found = ranks(size, body)
    for rank, reported in enumerate(found):
        assert list(reported) == list(ALL)
        assert reported["flag"] == ([3] if rank == 0 else [])
        assert all(reported[name] == [3] * size for name in ALL if name != "flag")


def test_where_there_is_no_floor() -> None:
    def body(comm: Communicator) -> list[str]:
        reasons = []
        with ExitStack() as stack:
            for floor in floors(comm, ALL, Ping(comm), stack):
                for what in (case("broadcast", size=comm.size), case("barrier", 0, comm.size)):
                    with contextlib.suppress(Unsupported):
                        floor.prepare(what)
                        floor.finish()
                        continue
                    reasons.append(f"{floor.name} {what.collective}")
        return reasons

    many = {f"{name} barrier" for name in ALL if name != "flag"}
    assert [set(reported) for reported in ranks(2, body)] == [{*many, "push broadcast"}] * 2
    (alone,) = ranks(1, body)
    assert "oneway broadcast" in alone and "duplex broadcast" in alone and "flag broadcast" in alone


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("piece", [1000, 1 << 40])
def test_bytes_go_round(size: int, piece: int) -> None:
    def body(comm: Communicator) -> bool:
        with contextlib.closing(Ring(comm)) as ring:
            reported = []
            for length in (1, 3_000_000):
                data = bytes([comm.rank + 1]) * length
                into = bytearray(length)
                ring.exchange(data, into, piece)
                reported.append(into == bytes([(comm.rank - 1) % size + 1]) * length)
            return all(reported)

    with nothing_left():
        assert ranks(size, body) == [True] * size


def test_a_neighbour_that_is_gone() -> None:
    def body(comm: Communicator) -> str:
        with contextlib.closing(Ring(comm)) as ring:
            if comm.rank == 1:
                return ""
            try:
                ring.exchange(b"", bytearray(1), 1)
            except ConnectionError as error:
                return str(error)
        return "nothing was noticed"

    assert ranks(2, body) == ["the other side of a socket has ended", ""]
