"""Which engine runs an operation, and that results do not depend on the mechanisms that are switched off."""

from __future__ import annotations

import numpy as np
import pytest

from collectives import Communicator
from tests.collectives.groups import ranks

MECHANISMS = ["board", "by-core", "pool", "pool-copies", "relay", "multicast", "spread"]


def engine_lines(comm: Communicator, collective: str, nbytes: int) -> dict[str, str]:
    lines = [line.split(None, 1) for line in comm.explain(collective, nbytes).splitlines()]
    return {f"{word} {rest.partition(':')[0]}": rest for word, rest in (x for x in lines if len(x) == 2)}


@pytest.mark.parametrize(
    ("collective", "nbytes", "engine"),
    [
        ("allreduce", 8, "board"),
        ("barrier", 0, "board"),
        ("allreduce", 1 << 20, "pool"),
        ("alltoall", 1 << 20, "schedule"),
    ],
)
def test_the_first_engine_that_can_runs_it(collective: str, nbytes: int, engine: str) -> None:
    for lines in ranks(2, lambda comm: engine_lines(comm, collective, nbytes), transport="shm"):
        assert f"engine {engine}" in lines
        before = ["board", "pool", "schedule"][: ["board", "pool", "schedule"].index(engine)]
        assert [f"not {name}" in lines for name in before] == [True] * len(before)


def test_over_tcp_only_links_will_do() -> None:
    lines = ranks(2, lambda comm: engine_lines(comm, "allreduce", 8), transport="tcp")[0]
    assert lines["not board"] == "board: not all ranks share memory"
    assert lines["not pool"].startswith("pool: ")
    assert "engine schedule" in lines


@pytest.mark.parametrize("without", MECHANISMS)
def test_results_do_not_depend_on_a_mechanism(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_WITHOUT", without)

    def body(comm: Communicator) -> None:
        for n in (2, 1000, 20_000, 300_000):
            mine = np.arange(n, dtype=np.int64) * (comm.rank + 1)
            total = np.arange(n, dtype=np.int64) * 6
            for memory in (np.empty, comm.empty):
                x, out = memory(n, np.int64), memory(n, np.int64)
                x[:] = mine
                for algorithm in ("one_shot", "two_shot"):
                    assert np.array_equal(comm.allreduce(x, out=out, algorithm=algorithm), total)
                x[:] = mine
                assert np.array_equal(comm.broadcast(x, 1), np.arange(n, dtype=np.int64) * 2)

    ranks(3, body, transport="shm")
