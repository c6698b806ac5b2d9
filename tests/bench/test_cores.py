"""The comparison on many cores: which runs it needs, how they are judged, and slow launches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from collectives.bench.cases import IN_PLACE, OUT_OF_PLACE
from collectives.bench.commands.bench import command
from collectives.bench.cores import LAUNCH_SIZES, Spread, comparison, lines, spreads
from collectives.bench.plan import Plan
from collectives.bench.report import Screen
from collectives.bench.runs import Runs

PLAIN, SHARED = lines([2])
PING = {"flag": 1e-7, "link": 2e-6}


def document(ratios: dict[int, tuple[float, float]]) -> dict[str, Any]:
    """A run with the ratios of our time to Open MPI's and to Intel MPI's, by message size."""
    return {
        "results": [
            {
                "collective": "allreduce",
                "bytes": nbytes,
                "pings": [[PING, PING]] * 3,
                "measurements": {
                    OUT_OF_PLACE: {"wrong": 0, "rounds": [[1.0]] * 3},
                    "openmpi": {"wrong": 0, "rounds": [[1 / openmpi]] * 3},
                    "impi": {"wrong": 0, "rounds": [[1 / impi]] * 3},
                },
            }
            for nbytes, (openmpi, impi) in ratios.items()
        ]
    }


def test_both_kinds_of_arrays_for_each_number_of_ranks() -> None:
    assert [(line.ranks, line.buffers) for line in lines([2, 16])] == [
        (2, "plain"),
        (2, "shared"),
        (16, "plain"),
        (16, "shared"),
    ]


def test_the_median_and_the_worst_size_have_targets() -> None:
    good = comparison(PLAIN, [document({8: (0.5, 0.6), 4096: (0.7, 0.2), 1 << 20: (1.0, 0.9)})])
    assert good.median == pytest.approx(0.7) and good.worst is not None
    assert (good.worst.nbytes, good.worst.best, good.passed) == (1 << 20, "openmpi", True)
    assert good.worst.ratio == pytest.approx(1.0)
    slow = comparison(PLAIN, [document({8: (0.5, 0.6), 4096: (0.7, 0.2), 1 << 20: (1.0, 1.1)})])
    assert slow.passed is False
    often = comparison(PLAIN, [document({8: (0.5, 0.8), 4096: (0.8, 0.2), 1 << 20: (1.0, 0.9)})])
    assert often.median == pytest.approx(0.8) and often.passed is False


def test_short_messages_in_shared_memory_have_no_target() -> None:
    ratios = {8: (3.0, 3.0), 16 << 10: (0.5, 0.4), 64 << 20: (0.3, 0.2)}
    found = comparison(SHARED, [document(ratios)])
    assert found.passed is True and found.worst is not None and found.worst.nbytes == 16 << 10
    assert comparison(SHARED, [document({**ratios, 1 << 20: (0.51, 0.2)})]).passed is False


def test_nothing_measured_is_no_verdict() -> None:
    found = comparison(PLAIN, [])
    assert (found.worst, found.median, found.passed) == (None, None, None)


def test_a_launch_twice_as_slow_as_the_best_is_accepted_and_no_more() -> None:
    assert Spread(True, 8, (2e-6, 1e-6, 1.5e-6)).passed
    slow = Spread(True, 8, (2.1e-6, 1e-6, 1.5e-6))
    assert slow.ratio == pytest.approx(2.1) and not slow.passed


def test_launches_alternate_and_those_that_failed_are_counted() -> None:
    seen: list[bool] = []

    def run(plan: Plan, bound: bool) -> dict[str, Any] | None:
        seen.append(bound)
        if len(seen) == 3:
            return None
        seconds = {IN_PLACE: {"seconds": {"median": float(len(seen))}}}
        return {"results": [{"bytes": nbytes, "measurements": seconds} for nbytes in plan.sizes]}

    found, failed = spreads(run, 3, (True, False))
    assert seen == [True, False] * 3 and failed == 1
    assert {(s.bound, s.nbytes): s.medians for s in found} == {
        (bound, nbytes): medians
        for bound, medians in ((False, (2.0, 4.0, 6.0)), (True, (1.0, 5.0)))
        for nbytes in LAUNCH_SIZES
    }


def test_launches_of_real_ranks(tmp_path: Path) -> None:
    runs = Runs(Screen(table=False), tmp_path, "auto")
    found, failed = spreads(lambda plan, bound: runs.measure(plan, 2, bound), 2, (False,))
    assert not failed and not runs.wrong
    assert [(s.bound, s.nbytes, len(s.medians)) for s in found] == [(False, nbytes, 2) for nbytes in LAUNCH_SIZES]
    assert all(0 < seconds < 1 for s in found for seconds in s.medians)
    assert json.loads((tmp_path / "run.json").read_text())["complete"]


def test_more_ranks_than_cores_are_refused() -> None:
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        done = CliRunner().invoke(command, ["cores", "-n", "2"])
    finally:
        os.sched_setaffinity(0, mine)
    assert done.exit_code == 2 and "2 ranks need as many cores, and there are 1" in done.output
