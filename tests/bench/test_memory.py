"""The reported figures of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collectives.bench import memory
from collectives.bench.memory import MIB, Probe, measure, probes
from collectives.bench.plan import Plan
from collectives.bench.report import Screen

PLAN = Plan(("allreduce",), (4 * MIB,))


def probe(name: str) -> Probe:
    return next(p for p in probes(PLAN, 2) if p.name == name)


def test_bars() -> None:
    assert {p.name: p.bar for p in probes(PLAN, 2)} == {
        "allreduce": 96 * MIB,
        "communicator": 16 * MIB,
        "link": 256 * 1024,
        "threads": 1024 * MIB,
    }


MOMENT = """
import numpy as np

from collectives.bench.probes import CannotReset, Peak

try:
    peak = Peak()
except CannotReset as reason:
    print(reason)
else:
    np.ones(50 << 20, np.uint8).sum()
    print(peak.rise(), Peak().rise())
"""


def test_memory_that_is_there_for_a_moment_counts() -> None:
    # in a process of its own: what earlier tests left is freed at any time, which would hide the rise
    done = subprocess.run([sys.executable, "-c", MOMENT], capture_output=True, text=True, check=True, timeout=60)
    words = done.stdout.split()
    if not words[0].isdigit():
        pytest.skip(done.stdout)
    during, after = map(int, words)
    assert 45 * MIB < during < 60 * MIB
    assert after < 10 * MIB


def test_an_allreduce_in_place() -> None:
    figure = measure(probe("allreduce"))
    assert figure is not None and len(figure.ranks) == 2 and figure.wrong == 0
    assert figure.value == max(figure.ranks) <= figure.bar


def test_ranks_as_threads() -> None:
    figure = measure(replace(probe("threads"), options={"ranks": 5, "timeout": 30.0}))
    assert figure is not None and len(figure.ranks) == 1 and figure.wrong == 0
    assert 10 * MIB < figure.value <= figure.bar


def test_links() -> None:
    figure = measure(replace(probe("link"), ranks=8))
    assert figure is not None and len(figure.ranks) == 8 and figure.wrong == 0
    assert figure.value <= figure.bar


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few = [
        replace(probe("allreduce"), bar=1),
        replace(probe("communicator"), ranks=3),
        replace(probe("threads"), options={"oops": 1}),
    ]
    monkeypatch.setattr(memory, "probes", lambda _plan, _ranks: few)
    path = tmp_path / "memory.json"
    assert memory.report(replace(PLAN, json=str(path)), 2, Screen()) == 3
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [line[4 if line[0] != "N/A" else 3] for line in lines] == ["OVER", "ok", "N/A"]
    reported = json.loads(path.read_text())
    assert not reported["complete"] and len(reported["memory"]) == 2 and reported["memory"][1]["bar"] == 16 * MIB
