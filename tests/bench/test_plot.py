"""Runs as pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collectives.bench.plot import curves, plot
from tests.bench.running import bench


def result(nbytes: int, dtype: str = "float32", **more: Any) -> dict[str, Any]:
    def measured(seconds: float) -> dict[str, Any]:
        return {"seconds": {"median": seconds}, "busbw": nbytes / 1e3}

    reported = {"collective": "allreduce", "bytes": nbytes, "dtype": dtype, "op": "sum", "asked": "auto", "trace": ""}
    found = {"in-place": measured(1e-6 * nbytes), "gloo": measured(1e-3), "impi": {"unsupported": "no"}}
    return {**reported, "bucket": 0, "measurements": found, **more}


def test_lines() -> None:
    (name,) = found = curves([result(4096), result(8), result(0)])
    assert name == "allreduce"
    assert [(line.label, line.contestant) for line in found[name]] == [
        ("pycollectives in-place", "in-place"),
        ("gloo", "gloo"),
    ]
    assert [point[0] for point in found[name][0].points] == [8, 4096]
    assert found[name][0].points[0][1:] == (8e-6, 8 / 1e3)


def test_what_differs_is_named() -> None:
    found = curves([result(8), result(8, "int8"), result(8, trace="vgg16", bucket=1), result(8, trace="vgg16")])
    assert [line.label for line in found["allreduce"]] == [
        "pycollectives in-place, float32",
        "gloo, float32",
        "pycollectives in-place, int8",
        "gloo, int8",
    ]
    assert [line.label.rpartition(", ")[2] for line in found["allreduce, vgg16"]] == ["fused"] * 2 + ["one by one"] * 2


def test_a_picture(tmp_path: Path) -> None:
    arguments = ("-b", "8", "-e", "512", "-f", "64", "--iters", "3", "--limits", "--rounds", "1")
    bench("all", *arguments, "--plot", "run.svg", "--json", "run.json", folder=tmp_path)
    picture = (tmp_path / "run.svg").read_text()
    assert picture.lstrip().startswith("<?xml") and picture.count("<path") > 100
    plot(json.loads((tmp_path / "run.json").read_text()), tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_results_is_drawn_all_the_same(tmp_path: Path) -> None:
    facts = {"processor": "CPU", "pycollectives": "0"}
    group = {"ranks": [facts], "pairs": {}, "outnumbered": False}
    plot({"results": [], "arguments": {"limits": []}, "group": group}, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()
