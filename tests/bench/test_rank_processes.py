"""Ranks in several processes: `bench meeting` with processes, and what the ranks of a process report."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from collectives.bench import meeting
from collectives.bench.meeting import Meeting
from collectives.bench.rank_processes import RankProcesses
from collectives.bench.rank_threads import RankThreads, place
from collectives.native.errors import CollectiveError
from tests.bench.running import bench, environment


class Noted:
    """What a turn leaves open."""

    def __init__(self) -> None:
        self.closed: list[bool] = []

    def close(self, servers: bool) -> None:
        self.closed.append(servers)


def who(threads: RankThreads, first: int, wrong: int) -> tuple[tuple[int, int, int], Noted]:
    """A turn: (process, first rank, ranks); the process that has the rank `wrong` fails."""
    if first <= wrong < first + threads.ranks:
        raise ValueError(f"rank {wrong} is wrong")
    return (os.getpid(), first, threads.ranks), Noted()


def test_ranks_are_divided_among_processes() -> None:
    with RankProcesses(7, 3) as group:
        found = group.run(who, -1)
        assert [(first, ranks) for _, first, ranks in found] == [(0, 2), (2, 2), (4, 3)]
        assert len({process for process, _, _ in found}) == 3
        with pytest.raises(CollectiveError, match="ValueError: rank 5 is wrong"):
            group.run(who, 5)
        assert group.run(who, -1) == found  # they go on
    for process, _, _ in found:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_one_process_is_this_one() -> None:
    with RankProcesses(3, 1) as group:
        assert group.run(who, -1) == [(os.getpid(), 0, 3)]
    with pytest.raises(ValueError, match="2 ranks cannot be in 3 processes"):
        RankProcesses(2, 3)


def test_targets() -> None:
    found = Meeting("tcp", 64, (0.4, 0.6, 0.5), (0.9,), 64, (1.0,), memory=5)
    assert found.over_torch == 0.9
    assert [(value, bar) for _, value, bar in found.bars()] == [(0.5, 5.0), (5, 1 << 20), (0.5, 0.5), (0.9, 0.5)]
    assert [what for what, _, _ in Meeting("file", 4, (1.0,), ()).bars()] == ["memory of a rank, bytes"]


def test_a_store_of_one_process_is_refused() -> None:
    with place("memory") as where, pytest.raises(ValueError, match="one process"):
        meeting.measure(where, 4, 1, 10.0, 2)


def test_ranks_in_processes_meet(tmp_path: Path) -> None:
    env = environment(COLLECTIVES_STORE="")
    arguments = ["-n", "64", "--processes", "4", "--rounds", "2", "--store", "tcp", "--no-init", "--json", "met.json"]
    done = bench("meeting", *arguments, folder=tmp_path, env=env)
    assert "64 ranks as threads of 4 processes" in done.stdout and "KiB of memory" in done.stdout
    (met,) = json.loads((tmp_path / "met.json").read_text())["meetings"]
    assert (met["ranks"], met["processes"], len(met["meet"]), met["init"], met["torch"]) == (64, 4, 2, [], [])
    assert 0 < met["memory"] <= meeting.MEMORY
    assert met["requests"] >= 4 and met["received"] > 64 * 32
    assert {bar["what"] for bar in met["bars"]} == {"meet, seconds", "memory of a rank, bytes"}
    done = bench("meeting", "-n", "4", "--processes", "2", "--torch", code=2)
    assert "needs a process for each rank" in done.stderr + done.stdout


def test_beside_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    arguments = ["-n", "2", "--processes", "2", "--rounds", "1", "--store", "tcp", "--torch", "--json", "met.json"]
    bench("meeting", *arguments, folder=tmp_path, env=environment(COLLECTIVES_STORE=""))
    (met,) = json.loads((tmp_path / "met.json").read_text())["meetings"]
    assert len(met["init"]) == len(met["torch"]) == 1 and met["torch"][0] > 0
    assert {bar["bar"] for bar in met["bars"]} == {5.0, 1 << 20, 0.5}
