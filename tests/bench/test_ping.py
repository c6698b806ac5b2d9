"""Pings, and the rounds that they set aside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import collectives.bench.ping
from collectives import Communicator
from collectives.bench.cases import OUT_OF_PLACE, Case
from collectives.bench.measure import Measurement, Row
from collectives.bench.ping import Ping, Reading, alike, mode
from collectives.bench.shared import array, shared
from tests.collectives.groups import nothing_left, ranks
from tests.launched import launched

NEAR, FAR = Reading(100e-9, 2e-6, 20e-6), Reading(300e-9, 2.2e-6, 20e-6)
SHARED = Reading(100e-9, 2e-6, 38e-6)  # a core that is half of one


def test_memory_that_all_map() -> None:
    def body(comm: Communicator) -> list[int]:
        memory = shared(comm, 4096)
        assert memory is not None
        mine = array(memory, "int32", 64, 8)
        assert not mine.any()
        comm.barrier()
        mine[comm.rank] = comm.rank + 1
        comm.barrier()
        return list(mine[: comm.size])

    with nothing_left():
        assert ranks(3, body) == [[1, 2, 3]] * 3


def test_pings_of_a_group() -> None:
    job = launched(3, Path(__file__).with_name("worker_ping.py")).succeeded()
    first, second, third = (json.loads(job.lines[rank][0]) for rank in range(3))
    assert all(0 < figure < 1 for figure in first[:3]) and len(first[3]) == 5
    assert second[3] == [] and third == [None, None, None, []]


def test_who_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives.bench.ping, "_PATIENCE", 0.05)

    def body(comm: Communicator) -> None:
        ping = Ping(comm)
        if comm.rank == 0:
            with pytest.raises(TimeoutError, match=r"rank 1 has not answered a ping for 0\.05 s"):
                ping.flags(1)
        else:
            comm.barrier()  # the one that `flags` begins with

    ranks(2, body)


def test_a_rank_alone_has_nobody_to_ping() -> None:
    assert ranks(1, lambda comm: Ping(comm).read()) == [Reading(None, None)]


@pytest.mark.parametrize(
    ("pings", "kept"),
    [
        ([(NEAR, NEAR)] * 5, [0, 1, 2, 3, 4]),
        ([(NEAR, NEAR), (FAR, FAR), (NEAR, NEAR), (NEAR, FAR), (NEAR, NEAR)], [0, 2, 4]),
        ([(NEAR, NEAR), (FAR, FAR), (FAR, FAR), (FAR, NEAR), (FAR, FAR)], [1, 2, 4]),
        ([(NEAR, NEAR), (FAR, FAR), (NEAR, NEAR)], [0, 1, 2]),  # too few would be left
        ([(NEAR, NEAR), (FAR, FAR)], [0, 1]),
        ([(NEAR, NEAR), (Reading(None, None), NEAR)], [0, 1]),
        ([(NEAR, NEAR), (SHARED, SHARED), (NEAR, NEAR), (NEAR, SHARED), (NEAR, NEAR)], [0, 2, 4]),
        ([(SHARED, SHARED), (NEAR, NEAR), (FAR, FAR), (SHARED, SHARED), (SHARED, SHARED)], [0, 3, 4]),
    ],
)
def test_rounds_of_one_mode(pings: list[tuple[Reading, Reading]], kept: list[int]) -> None:
    assert alike(pings) == kept


def test_without_flags_messages_tell() -> None:
    slow, fast = Reading(None, 30e-6), Reading(None, 10e-6)
    pings = [(fast, fast), (fast, fast), (slow, slow), (fast, fast)]
    assert alike(pings) == [0, 1, 3]
    assert mode(pings) == "" and mode([(NEAR, NEAR)]) == "near" and mode([(FAR, NEAR), (FAR, FAR)]) == "far"


def test_a_ratio_leaves_out_what_was_set_aside() -> None:
    def taken(name: str, ours: bool, *seconds: float) -> Measurement:
        return Measurement(name, ours, [np.array([s]) for s in seconds], list(seconds), 0)

    case = Case("allreduce", "float32", 4, "sum", -1, "auto", 2, 2)
    found = [taken(OUT_OF_PLACE, True, 1, 9, 2, 9), taken("gloo", False, 2, 9, 4, 9)]
    pings = ((NEAR, NEAR), (FAR, FAR), (NEAR, NEAR), (NEAR, NEAR))
    row = Row(case, "ring", {m.contestant: m for m in found}, pings)
    assert row.set_aside == [1] and row.ratio(found[1]) == 0.5
