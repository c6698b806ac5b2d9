"""The table for people."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pytest

from collectives.bench.cases import IN_PLACE, OUT_OF_PLACE, Case
from collectives.bench.hosts import Facts, Group
from collectives.bench.measure import Measurement, Row
from collectives.bench.ping import Reading
from collectives.bench.plan import PeerPlan, Plan
from collectives.bench.report import Screen, Table, microseconds
from collectives.transports.host import ranges
from tests.bench.running import table

CASE = Case("allreduce", "float32", 4, "sum", -1, "auto", 2, 1 << 20)
PLAN = Plan(("allreduce",), (4 << 20,), rounds=2, limits=("copy",), peers=(PeerPlan("gloo", ""), PeerPlan("mpich", "")))
FACTS = Facts(0, "h", "m", 1, 2, "0-1", 0.0, True, "CPU", ("avx2",), "Linux", 1, "3", "2", "0", "1", {"shm": 1})


def taken(contestant: str, *seconds: float, ours: bool = False, wrong: int = 0) -> Measurement:
    return Measurement(contestant, ours, [np.array([s]) for s in seconds], list(seconds), wrong)


def row(wrong: int = 0) -> Row:
    found = [
        taken(OUT_OF_PLACE, 0.001, 0.001, 0.002, 0.002, ours=True, wrong=wrong),
        taken(IN_PLACE, 0.001, 0.001, 0.001, 0.001, ours=True),
        taken("copy", 0.0005, 0.0005, 0.001, 0.001),
        taken("gloo", 0.004, 0.004, 0.016, 0.016),
        Measurement("mpich", False, unsupported="it is\nnot here"),
    ]
    near, far = Reading(100e-9, 2e-6, 20e-6), Reading(300e-9, 2e-6, 24e-6)
    return Row(CASE, "ring", {m.contestant: m for m in found}, ((near, near), (near, near), (far, far), (near, near)))


def printed(capsys: pytest.CaptureFixture[str], screen: Screen, wrong: int = 0) -> str:
    shown = Table(PLAN, screen, [CASE])
    shown.head("allreduce", Group((FACTS, FACTS)), {"gloo": {"torch": "2"}}, datetime(2020, 1, 2))
    shown.note(CASE, "round 1")
    shown.row(row(wrong))
    shown.foot(1.0)
    return capsys.readouterr().out


def test_fields(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, Screen())
    (fields,) = table(output)
    assert fields[:6] == ["4194304", "1048576", "float32", "sum", "-1", "ring"]
    assert fields[6:10] == ["1500.0", "2.80", "2.80", "0"]
    assert fields[10:14] == ["1000.0", "4.19", "4.19", "0"]
    assert fields[14:] == ["750.0", "50.0", "10000", "0.250", "N/A", "N/A"]
    assert "# mpich: it is not here" in output
    assert "# gloo: torch 2" in output
    assert "ranks 2, transport shm (1 pair)" in output and "ranks outnumber cores" in output
    assert "Wrong values         : 0 OK" in output
    assert "Ping, by flag, near  : 0.10 us one way (0.10 to 0.30)" in output
    assert "Cores, by a loop     : 20.00 us (20.00 to 24.00)" in output
    assert "Rounds set aside     : 1 of 4" in output
    assert "ours/gloo            : geometric mean 0.250, at most 0.250 (at 4M)" in output


def test_names_stand_over_their_columns(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, Screen()).splitlines()
    names = next(line for line in lines if "#wrong" in line)
    (values,) = (line for line in lines if not line.startswith("#"))
    ends = [i for i, c in enumerate(f"{names} ") if c == " " and names[i - 1] != " "][1:]
    assert [i for i, c in enumerate(f"{values} ") if c == " " and values[i - 1 : i].strip()] == ends


def test_without_a_terminal_there_are_no_colours_and_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, Screen())
    assert capsys.readouterr().err == ""
    assert "\x1b" not in printed(capsys, Screen())


def test_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Table(PLAN, Screen(colour=True, progress=True), [CASE])
    shown.note(CASE, "round 1")
    shown.row(row(wrong=3))
    shown.foot(1.0)
    captured = capsys.readouterr()
    assert captured.err.endswith("\r\x1b[K") and "allreduce 4M float32 auto: round 1" in captured.err
    assert "\x1b[1;31m" in captured.out and "FAILED" in captured.out


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.234e-6, "1.23"), (98.76e-6, "98.76"), (0.0012345, "1234.5"), (1.5, "1500000")]
)
def test_microseconds(seconds: float, text: str) -> None:
    assert microseconds(seconds) == text


def test_cores_in_the_kernels_notation() -> None:
    assert ranges([]) == "" and ranges([3]) == "3" and ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
