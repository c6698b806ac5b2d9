"""Ranks that meet, again and again: how long it takes, and what is left."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from collectives.bench import lifetimes, meeting
from collectives.bench.commands.bench import command
from collectives.bench.lifetimes import GROWTH, Counts, Lifetimes
from collectives.bench.rank_threads import OWN, Place, RankThreads, job, place, usual
from tests.bench.running import bench, environment
from tests.collectives.groups import nothing_left

if TYPE_CHECKING:
    from tests.redis_server import RedisServer


def test_all_start_together_on_the_same_threads() -> None:
    with RankThreads(3) as threads:
        first, seconds = threads.run(lambda rank: (rank, threading.get_ident()))
        second, _ = threads.run(lambda rank: (rank, threading.get_ident()))
        assert [rank for rank, _ in first] == [0, 1, 2] and seconds > 0
        assert {thread for _, thread in first} == {thread for _, thread in second}


def test_the_first_error_is_raised_and_the_threads_go_on() -> None:
    after = threading.Event()

    def task(rank: int) -> None:
        if rank == 1:
            try:
                raise ValueError("the cause")
            finally:
                after.set()
        assert after.wait(10)
        time.sleep(0.05)  # what failed first has been noted
        raise RuntimeError("a consequence")

    with RankThreads(2) as threads:
        with pytest.raises(ValueError, match="the cause"):
            threads.run(task)
        assert threads.run(lambda rank: rank)[0] == [0, 1]


def test_a_job_has_a_run_id_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLECTIVES_RUN_ID", raising=False)
    with job() as secret:
        assert len(secret) == 32 and len(os.environ["COLLECTIVES_RUN_ID"]) == 32
    assert "COLLECTIVES_RUN_ID" not in os.environ
    monkeypatch.setenv("COLLECTIVES_RUN_ID", "mine")
    with job():
        assert os.environ["COLLECTIVES_RUN_ID"] != "mine"
    assert os.environ["COLLECTIVES_RUN_ID"] == "mine"


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_STORE", "redis://host:1")
    assert usual() == (*OWN, "redis://host:1")
    monkeypatch.setenv("COLLECTIVES_STORE", "file:///shared")
    assert usual() == OWN
    with pytest.raises(ValueError, match="'etcd': write memory, file, tcp or redis://host"), place("etcd"):
        pass


@pytest.mark.parametrize("kind", [*OWN, "redis"])
def test_meeting_and_lifetimes(kind: str, redis_plain: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetimes, "FIRST", 2)
    with nothing_left(), place(redis_plain.url if kind == "redis" else kind) as where:
        assert where.kind == kind
        met = meeting.measure(where, 3, 2, 30.0)
        assert len(met.meet) == len(met.init) == 2 and min(*met.meet, *met.init) > 0
        rounds: list[int] = []
        found = lifetimes.measure(where, "auto", 2, 3, 30.0, rounds.append)
        assert rounds == [0, 1, 2] and found.wrong == 0
        assert (found.before.keys, found.before.files) == (found.after.keys, found.after.files) == (0, 0)
        assert set(found.grown) <= {"memory"}


def test_what_is_left_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A place where each round leaves a key and a file, and a library that leaves a descriptor."""
    monkeypatch.setattr(lifetimes, "FIRST", 1)
    left = [0]
    descriptors: list[int] = []

    def note(_number: int) -> None:
        left[0] += 1
        descriptors.append(os.open(tmp_path, os.O_RDONLY))

    with place("memory") as real:
        leaky = Place("leaky", real.url, lambda: left[0], lambda: left[0])
        try:
            found = lifetimes.measure(leaky, "auto", 2, 4, 30.0, note)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    assert [name for name in found.grown if name != "memory"] == ["descriptors", "keys", "files"]
    assert found.after.keys == 4


def test_memory_may_grow_a_little() -> None:
    counts = Counts(5, 3, 0, 0, 0, 50 << 20)
    found = Lifetimes("memory", "auto", 2, 9, 1.0, counts, replace(counts, memory=counts.memory + GROWTH), 0)
    assert found.grown == []
    assert replace(found, after=replace(counts, memory=counts.memory + GROWTH + 1)).grown == ["memory"]
    assert replace(found, after=replace(counts, threads=4)).grown == ["threads"]


def test_commands(tmp_path: Path) -> None:
    env = environment(COLLECTIVES_STORE="")
    done = bench("meeting", "-n", "4", "--rounds", "2", "--json", "met.json", folder=tmp_path, env=env)
    lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [line[0] for line in lines] == list(OWN) and all(float(f) > 0 for line in lines for f in line[1:])
    reported = json.loads((tmp_path / "met.json").read_text())["meetings"]
    assert [len(m["meet"]) for m in reported] == [2, 2, 2]
    done = bench("lifetimes", "--rounds", "3", "--store", "memory", "--json", "life.json", folder=tmp_path, env=env)
    assert "# memory: nothing has grown, 0 wrong values" in done.stdout
    (taken,) = json.loads((tmp_path / "life.json").read_text())["lifetimes"]
    assert taken["grown"] == [] and taken["rounds"] == 3 and taken["after"]["keys"] == 0


def test_growth_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(5, 3, 0, 0, 0, 1)

    def measure(where: Place, *_arguments: object) -> Lifetimes:
        return Lifetimes(where.kind, "auto", 2, 9, 1.0, counts, replace(counts, keys=2), 0)

    monkeypatch.setattr("collectives.bench.commands.lifetimes.measure", measure)
    done = CliRunner().invoke(command, ["lifetimes", "--store", "memory"])
    assert done.exit_code == 1 and "memory: grown: keys" in done.output


@pytest.mark.parametrize("which", ["meeting", "lifetimes"])
def test_what_is_refused(which: str) -> None:
    done = CliRunner().invoke(command, [which, "--store", "etcd"])
    assert done.exit_code == 2 and "write memory, file, tcp or redis://host" in done.output


def test_a_server_that_is_not_there() -> None:
    done = bench("meeting", "--store", "redis://127.0.0.1:1", code=3)
    assert "ConnectionError" in done.stderr
