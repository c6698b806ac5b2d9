"""docs/performance.md is what bench/results/ says, from recorded figures and from documents of the benchmark alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import results
from tools.performance_page import ABOUT, keep, page

ROOT = Path(__file__).resolve().parents[1]


def cell(band: list[tuple[float, float]], ranks: int = 2) -> dict[str, Any]:
    """As `bench standing --json` writes one: (ratio, bar) of each size."""
    line = {"transport": "shm", "buffers": "plain", "ranks": ranks, "collective": "allreduce", "row": 1}
    sizes = [{"nbytes": 8, "ratio": ratio, "bar": bar} for ratio, bar in band]
    return {"line": {**line, "against": ["openmpi", "mpich", "impi"], "bars": [1.0]}, "sizes": sizes, "verdict": "pass"}


def standing(*cells: dict[str, Any]) -> dict[str, Any]:
    measured = {"seconds": {"median": 1e-6}, "wrong": 0, "rounds": [[1e-6, 2e-6]], "rank_medians": [1e-6]}
    run = {"setting": {"ranks": 2}, "complete": True, "results": [{"measurements": {"out-of-place": measured}}]}
    started = "2027-01-02T03:04:05+00:00"
    return {"format": results.STANDING, "version": 1, "started": started, "cells": list(cells), "runs": [run]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kept = tmp_path / "results"
    kept.mkdir()
    machines = {"format": results.MACHINES, "machines": {"M1": "A machine.", "M2": "Another."}}
    (kept / "machines.json").write_text(json.dumps(machines))
    recorded = {
        "format": results.RECORDED_STANDING,
        "machine": "M1",
        "date": "2026-11-26",
        "commands": ["collectives bench standing"],
        "lines": [
            {**cell([])["line"], "bands": [{"worst": 0.5, "median": 0.4}, None, None]},
            {**cell([], ranks=4)["line"], "bands": [{"worst": 0.7, "median": 0.6}, None, {"worst": 0.9}]},
        ],
    }
    (kept / "2026-11-26-m1-standing.json").write_text(json.dumps(recorded))
    return kept


def test_the_page_is_up_to_date() -> None:
    """`make docs` writes it."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.performance_page", "--check"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_kept_figure_names_a_machine_a_date_and_is_on_the_page() -> None:
    kept = results.read()
    written = page(kept)
    for line in kept.lines:
        assert line.source.commands and line.source.date
        assert f"`bench/results/{line.source.file}`" in written
    for table in kept.tables:
        assert table.title in ABOUT
        assert all(f"| {what} |" in written for what, _ in table.rows)


def test_a_measured_line_replaces_the_recorded_one(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "standing.json"
    run.write_text(json.dumps(standing(cell([(0.3, 1.0), (0.2, 0.5), (0.1, 1.0)]))))
    target = keep(run, "M1", [], "quiet", folder)
    assert target.name == "2027-01-02-m1-standing.json"
    assert '"rounds"' not in target.read_text() and '"rank_medians"' in target.read_text()
    written = page(results.read(folder))
    assert "| allreduce, 2 ranks | best MPI | 0.20, 0.20 |  |  |" in written  # the worst beside its bar, not 0.30
    assert "0.50, 0.40" not in written
    assert "| allreduce, 4 ranks | best MPI | 0.70, 0.60 |  | 0.90 |" in written
    assert "2 January 2027" in written and "recorded by hand in" in written


def test_memory_and_meeting_of_a_run_have_tables(folder: Path, tmp_path: Path) -> None:
    memory = {"format": results.BENCH, "complete": True, "started": "2027-01-02T03:04:05", "results": []}
    memory["memory"] = [{"what": "a link", "value": 131072, "bar": 262144, "how": "", "ranks": [131072], "wrong": 0}]
    meeting = {"format": results.MEETING, "version": 1}
    meeting["meetings"] = [{"store": "tcp", "ranks": 64, "meet": [0.01, 0.02, 0.03], "init": [0.1, 0.2, 0.3]}]
    many = {"store": "tcp", "ranks": 99, "processes": 4, "memory": 1 << 19, "meet": [2.0], "init": [], "torch": []}
    meeting["meetings"].append(many)  # type: ignore[attr-defined]
    beside = {"format": results.MEETING, "version": 1}
    beside["meetings"] = [{**many, "processes": 99, "init": [0.3], "torch": [0.9]}]
    for name, document in (("memory", memory), ("meeting", meeting)):
        (tmp_path / name).write_text(json.dumps(document))
        keep(tmp_path / name, "M2", [], "", folder)
    written = page(results.read(folder))
    assert "| a link | 0.12 | 0.25 | M2, 2 January 2027 |" in written
    assert "| 64 ranks, tcp store | 20 | 200 | M2," in written
    assert "| 99 ranks in 4 processes, tcp store | 2 000 |  | M2," in written
    assert "| 99 ranks in 4 processes, tcp store | 0.5 | 1 |" in written
    (tmp_path / "meeting").write_text(json.dumps(beside))
    keep(tmp_path / "meeting", "M2", [], "", folder)
    assert "| 99 ranks in 99 processes, tcp store | 2 000 | 300 | 900 | M2," in page(results.read(folder))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"format": "something else"}, "not a document"),
        ({"format": results.BENCH, "complete": False}, "cut short"),
    ],
)
def test_what_is_no_complete_run_is_not_kept(folder: Path, tmp_path: Path, document: dict[str, Any], why: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps(document))
    with pytest.raises(results.WrongResult, match=why):
        keep(tmp_path / "run.json", "M1", [], "", folder)


def test_a_machine_that_nobody_described_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(standing(cell([(0.3, 1.0)]))))
    keep(tmp_path / "run.json", "M9", [], "", folder)
    with pytest.raises(results.WrongResult, match="M9"):
        results.read(folder)
