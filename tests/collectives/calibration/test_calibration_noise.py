"""Calibrating beside other programs: it is noticed and said, and the built-in choices stay."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import collectives
from collectives.calibration import FULL, QUICK, calibrate
from collectives.calibration.noise import Reading, Watch, beforehand, cores_time, judge, middle
from collectives.core import choosing
from collectives.schedule.defaults import DEFAULTS
from tests.bench.running import bench, command, environment
from tests.busy import busy_programs
from tests.collectives.groups import ranks

# One rank of two, on two cores of its machine, in ten seconds.
QUIET = Reading(host=0, process=1, cores=2, elapsed=10.0, busy=20.2, stolen=0.0, used=10.0, preempted=40)
OTHER = replace(QUIET, process=2)


@pytest.mark.parametrize(
    ("change", "size", "spread", "reason"),
    [
        ({}, 2, 1.1, None),
        ({}, 2, None, None),
        ({"busy": 20.9}, 2, 1.1, None),  # daemons' chores
        ({"busy": 23.0}, 2, 1.1, "other programs used 0.3 of 2 cores, which the ranks need"),
        ({"busy": 23.0, "cores": 8}, 2, 1.1, None),  # there is room for both
        ({"busy": 23.0}, 4, 1.1, "other programs used 0.3 of 2 cores, which the ranks need"),
        ({"stolen": 1.0}, 2, 1.1, "the hypervisor gave 5% of the time to other machines (steal)"),
        ({"stolen": 0.2}, 2, 1.1, None),
        ({"preempted": 900}, 2, 1.1, "a rank lost its core 90 times a second"),
        ({"preempted": 900}, 4, 1.1, None),  # ranks that share cores take them from each other
        ({}, 2, 2.0, "the same call took 2.0 times as long in one round as in another"),
        ({}, 4, 2.0, None),
        ({}, 4, 3.0, "the same call took 3.0 times as long in one round as in another"),
    ],
)
def test_the_verdict(change: dict[str, float], size: int, spread: float | None, reason: str | None) -> None:
    cores = int(change.get("cores", 2))
    readings = [replace(QUIET, **change), replace(OTHER, cores=cores)]  # type: ignore[arg-type]
    assert judge(readings, size, spread) == (() if reason is None else (reason,))


def test_threads_of_one_process_count_once_and_hosts_apart() -> None:
    alone = replace(QUIET, used=20.0)
    assert judge([alone, alone], 2) == ()
    assert judge([QUIET, OTHER, replace(alone, host=1, busy=30.0)], 2) == (
        "other programs used 1.0 of 2 cores, which the ranks need",
    )


def test_what_the_kernel_says(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  999 9 9 9 9 9 9 9 0 0\ncpu0 100 10 20 5000 7 3 4 50 1 1\ncpu1 1 0 0 9 0 0 0 2 0 0\n"
        "cpu12 7 0 0 9 0 0 0 0 0 0\nintr 5 0\nctxt 3\n"
    )
    assert cores_time({0, 12}, stat) == pytest.approx((144 / tick, 50 / tick))
    stat.write_text("cpu0 1 2 3 4\n")  # of a kernel that counts little
    assert cores_time({0}, stat) == pytest.approx((6 / tick, 0.0))
    assert cores_time({0}, tmp_path / "hidden") == (0.0, 0.0)
    assert middle([]) is None and middle([3.0, 1.0, 2.0]) == 2.0


def test_a_watch_sees_its_own_process_and_others() -> None:
    watch = Watch()
    with busy_programs():
        assert "other programs used" in " ".join(beforehand(2))
        end = watch.reading()
        while (reading := watch.reading()).used < end.used + 0.2:
            pass
    assert reading.busy > reading.used > 0 and reading.elapsed >= 0.2
    assert Reading.from_json(reading.to_json()) == reading


def test_a_group_that_is_disturbed_gives_up() -> None:
    effort = replace(QUICK.with_(20.0, 64, ("allreduce", "broadcast")), sizes=(8, 64), looks=(8, 64))

    def body(comm: collectives.Communicator) -> tuple[int, tuple[str, ...], dict[str, str]]:
        found = calibrate(comm, DEFAULTS, effort)
        return len(found.table.rows), found.noise, found.facts

    def tolerant(comm: collectives.Communicator) -> tuple[int, str]:
        found = calibrate(comm, DEFAULTS, effort, tolerant=True)
        return len(found.table.rows), found.facts["noise"]

    with busy_programs():
        first, second = ranks(2, body, timeout=60.0)
        kept = ranks(2, tolerant, timeout=60.0)[0]
    assert first == second and first[0] == 0
    assert any("other programs used" in reason for reason in first[1]) and "noise" in first[2]
    assert kept[0] > 0 and "other programs used" in kept[1]


def test_the_command_says_so_and_writes_nothing(tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(tmp_path))
    quick = ("calibrate", "allreduce", "-n", "2", "--budget", "20", "-e", "64")
    with busy_programs():
        refused = command(*quick, env=env, code=3)
        assert "this machine is not quiet: other programs used" in refused.stderr
        assert "The built-in choices stay; nothing was written" in refused.stderr
        assert refused.stdout == "" and not list(tmp_path.rglob("*.table"))
        kept = command(*quick, "--despite-noise", env=env)
    assert "not quiet: " in kept.stderr and "The table is kept, as you asked" in kept.stderr
    (file,) = tmp_path.rglob("*.table")
    assert "noise = " in file.read_text()


def test_a_job_that_calibrates_says_so_too(tmp_path: Path) -> None:
    """Under a launcher nothing is looked at beforehand: the ranks notice while they measure."""
    env = environment(XDG_CACHE_HOME=str(tmp_path))
    calibrating = ("--", *command_line(), "calibrate", "allreduce", "--budget", "20", "-e", "64")
    with busy_programs():
        done = command("run", "-n", "2", *calibrating, env=env, code=3)
    assert done.stderr.count("this machine is not quiet: ") == 1 and not list(tmp_path.rglob("*.table"))


def command_line() -> tuple[str, ...]:
    import sys

    return sys.executable, "-m", "collectives"


def test_the_simulators_costs_are_not_found_beside_others_either(tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(tmp_path))
    quick = ("simulator", "broadcast", "-n", "2", "-e", "64", "--budget", "0.2")
    with busy_programs():
        refused = bench(*quick, env=env, code=3)
        assert "this machine is not quiet: other programs used" in refused.stderr
        assert "no costs were kept" in refused.stderr and not list(tmp_path.rglob("*.costs"))
        assert "not quiet" in bench(*quick, "--despite-noise", env=env).stderr
    assert list(tmp_path.rglob("*.costs"))


def test_first_use_beside_others_keeps_the_defaults_and_explains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choosing, "worth_it", lambda situation: situation.size > 1)
    monkeypatch.setattr(choosing, "_busy", lambda machine: False)
    monkeypatch.setattr("collectives.calibration.run.QUICK", replace(QUICK, seconds=20.0, sizes=(8, 64), looks=(8, 64)))
    with busy_programs():
        reported = ranks(2, lambda comm: comm.explain("allreduce", 8), transport="tcp", calibrate="auto")
    assert reported[0].partition("peers")[0] == reported[1].partition("peers")[0]
    assert "  from        built in; not calibrated, because other programs used" in reported[0]
    assert not list(tmp_path.rglob("*.table")) and not list(tmp_path.rglob(".*"))


def test_the_budget_is_not_spent_on_noise() -> None:
    """A full calibration of a minute beside others ends after its first collective."""
    with busy_programs():
        found = ranks(2, lambda comm: calibrate(comm, DEFAULTS, FULL.with_(8.0, 64, ("barrier", "allreduce"))))[0]
    assert found.noise and not found.table.rows and found.seconds < 8.0
