"""`collectives bench choice`: what is compared with what, the report, and the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectives.bench.choice import AUTO, ROUNDS, AlgorithmTimes, together
from collectives.bench.commands.choice import report
from tests.bench.running import bench, environment


def result(ranks: int = 2, nbytes: int = 8, **seconds: Sequence[float | None]) -> AlgorithmTimes:
    return AlgorithmTimes("allreduce", ranks, nbytes, "ring", seconds)


def test_the_choice_is_compared_within_each_round() -> None:
    """A machine that is twice as slow in one round is so for all."""
    found = result(auto=[1.0, 2.0, 1.0], tree=[0.8, 1.6, 0.8], star=[2.0, 4.0, 2.0])
    assert found.best == "tree" and found.ratio == pytest.approx(1.25)
    first = result(auto=[1.0, 2.0, 1.0], tree=[1.1, 2.2, 1.1])
    assert (first.best, first.ratio) == (AUTO, 1.0)
    alone = result(auto=[1.0, 2.0])
    assert (alone.best, alone.ratio) == (AUTO, 1.0)


def test_launches_are_judged_together() -> None:
    first = result(auto=[1.0, 1.0], tree=[0.5, 0.5], star=[4.0, 4.0])
    second = result(auto=[1.0, 1.2, 1.0], tree=[1.0] * 3)
    found = together([first, second])
    assert found.seconds == {
        AUTO: [1.0, 1.0, 1.0, 1.2, 1.0],
        "tree": [0.5, 0.5, 1.0, 1.0, 1.0],
        "star": [4.0, 4.0, None, None, None],
    }
    assert found.best == "tree" and found.ratio == pytest.approx(1.2) and found.median("star") == 4.0
    assert together([first]) == first


def test_a_line_for_each_call() -> None:
    found = [
        result(auto=[3e-6], tree=[2e-6]),
        result(4, 64 << 10, auto=[3e-6], tree=[4e-6]),
        result(8, 1 << 20, auto=[1.1e-6], tree=[1e-6]),
    ]
    lines = [" ".join(line.split()) for line in report(found)]
    assert lines[1:] == [
        "collective ranks bytes choice us best us ratio",
        "allreduce 2 8 ring 3.00 tree 2.00 1.50 over 1.15",
        "allreduce 4 64K ring 3.00 ring 3.00 1.00",
        "allreduce 8 1M ring 1.10 tree 1.00 1.10",
        "3 choices: at most 1.50 times the best, 1 over 1.15",
    ]


def test_from_the_command_line_to_the_file(tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(tmp_path), COLLECTIVES_ALGORITHM="allreduce:tree", COLLECTIVES_CALIBRATE="off")
    few = ("-n", "2,3", "-b", "64", "-e", "4K", "-f", "64", "--budget", "0.1", "--launches", "2")
    output = bench("choice", "allreduce", "scatter", *few, "--json", "found.json", folder=tmp_path, env=env).stdout
    reported = json.loads((tmp_path / "found.json").read_text())
    results = reported["results"]
    assert [(h["collective"], h["ranks"], h["nbytes"]) for h in results] == [
        (collective, ranks, nbytes)
        for ranks in (2, 3)
        for collective in ("allreduce", "scatter")
        for nbytes in (64, 4096)
    ]
    for h in results:
        assert h["chosen"] == {"allreduce": "tree", "scatter": "linear"}[h["collective"]]
        assert h["chosen"] not in h["seconds"] and len({len(times) for times in h["seconds"].values()}) == 1
        assert all(s is None or s > 0 for times in h["seconds"].values() for s in times)
        assert len(h["seconds"]["auto"]) == 2 * ROUNDS
    assert len(output.splitlines()) == 2 + len(results) + 1


def test_what_is_refused(tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(tmp_path))
    assert "2 to 64 ranks" in bench("choice", "-n", "1", code=2, env=env).stderr
    assert "is below the smallest" in bench("choice", "-b", "1M", "-e", "1K", code=2, env=env).stderr
    assert "'pigeon'" in bench("choice", "--transport", "pigeon", code=2, env=env).stderr
