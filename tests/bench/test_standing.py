"""The table of targets: which runs it needs, and how cells are judged."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from collectives.bench.bars import BANDS, LINES, ROW, Line, Setting
from collectives.bench.cases import IN_PLACE, KINDS, OUT_OF_PLACE
from collectives.bench.commands.bench import command
from collectives.bench.hosts import busy
from collectives.bench.peers import NAMES
from collectives.bench.plan import Plan, cases
from collectives.bench.standing import LONGEST, SHORTEST, Session, cells, figures
from tests.bench.running import environment
from tests.waiting import eventually

SETTINGS = 9  # in which something is measured
LINE = Line("shm", "plain", 2, "allreduce", ("openmpi", "impi"), (0.5, 1.0, 0.7), near=(0.5, 0.8, 0.7))
NEAR, FAR = {"flag": 1e-7, "link": 2e-6}, {"flag": 3e-7, "link": 2e-6}


def result(nbytes: int, openmpi: float | None, impi: float | None, *pings: Any, **more: Any) -> dict[str, Any]:
    """Ours takes a second, in as many rounds as there are pings, three if none is given."""
    turns = pings or (FAR,) * 3
    theirs = {"openmpi": openmpi, "impi": impi}
    others = {n: {"unsupported": "no"} if r is None else reported(1 / r, len(turns)) for n, r in theirs.items()}
    return {
        "collective": "allreduce",
        "bytes": nbytes,
        "pings": [[ping, ping] for ping in turns],
        "measurements": {OUT_OF_PLACE: {"unsupported": "no"}, IN_PLACE: reported(1.0, len(turns)), **others},
        **more,
    }


def reported(seconds: float, rounds: int) -> dict[str, Any]:
    return {"wrong": 0, "rounds": [[seconds / 2, seconds, 9.0]] * rounds}


def judged(*results: dict[str, Any], line: Line = LINE) -> list[str]:
    return [cell.verdict for cell in cells(line, [{"results": list(results)}])]


def test_the_worst_size_decides() -> None:
    results = [result(8, 0.25, 0.4), result(4096, 0.625, 0.125), result(16384, 1, 1)]
    first, second, third = cells(LINE, [{"results": results}])
    assert (first.verdict, first.worst.nbytes, first.worst.best) == ("FAIL", 4096, "openmpi")
    assert first.median == pytest.approx((0.4 + 0.625) / 2)
    assert (second.verdict, second.worst.ratio, second.worst.bar) == ("pass", 1, 1.0)
    assert (third.verdict, third.sizes) == ("N/A", ())


def test_the_best_of_the_others_counts() -> None:
    assert judged(result(8, 0.4, 0.6))[0] == "FAIL"
    assert judged(result(8, 0.4, None))[0] == "pass"
    assert judged(result(8, None, None))[0] == "N/A"
    assert judged(result(8, 0.6, 0.6, collective="alltoall"))[0] == "N/A"


def test_what_is_wrong_is_no_competition() -> None:
    broken = result(8, 0.4, 0.6)
    broken["measurements"]["impi"]["wrong"] = 3
    assert judged(broken)[0] == "pass"


def test_the_mode_chooses_the_bar() -> None:
    assert judged(result(65536, 0.9, 0.9))[1] == "pass"
    assert judged(result(65536, 0.9, 0.9, NEAR))[1] == "FAIL"
    assert judged(result(65536, 0.9, 0.9, NEAR), line=replace(LINE, ranks=4))[1] == "pass"


def test_rounds_in_another_mode_do_not_count() -> None:
    mixed = result(65536, 0.9, 0.9, FAR, NEAR, FAR, FAR)
    mixed["measurements"]["impi"]["rounds"][:] = [[1 / 0.9], [1 / 5], [1 / 0.9], [1 / 0.9]]
    second = cells(LINE, [{"results": [mixed]}])[1]
    assert second.verdict == "pass" and second.worst.ratio == pytest.approx(0.9)
    assert (second.worst.mode, second.worst.rounds, second.worst.set_aside) == ("far", 4, 1)


def test_all_launches_are_judged_together() -> None:
    def ratio(*launches: dict[str, Any]) -> float:
        return cells(LINE, [{"results": [launch]} for launch in launches])[0].worst.ratio

    assert ratio(result(8, 0.3, 0.3), result(8, 0.9, 0.9), result(8, 0.5, 0.5)) == pytest.approx(0.5)
    # A system that ended during one of them is compared with in the others; one that was wrong then, too.
    assert ratio(result(8, 0.3, 0.8), result(8, 0.3, None)) == pytest.approx(0.8)
    broken = result(8, 0.3, 0.9)
    broken["measurements"]["impi"]["wrong"] = 3
    assert ratio(result(8, 0.3, 0.2), broken) == pytest.approx(0.3)


def session(
    lines: tuple[Line, ...], budget: float, runs: list[tuple[Plan, int]], missing: str = "", launches: int = 1
) -> Session:
    def run(plan: Plan, ranks: int) -> dict[str, Any] | None:
        runs.append((plan, ranks))
        return None if plan.transport == missing else {"results": []}

    return Session(lines, budget, launches, 5, dict.fromkeys(NAMES, "/bin/python"), run, lambda _text: None)


def test_a_run_for_each_setting() -> None:
    runs: list[tuple[Plan, int]] = []
    found = session(LINES, 600.0, runs).documents()
    reported = {(plan.transport, plan.buffers, ranks, plan.row): plan for plan, ranks in runs}
    assert len(runs) == len(found) == SETTINGS
    assert set(reported) == {(line.transport, line.buffers, line.ranks, line.row) for line in LINES}
    four = reported["shm", "plain", 4, 1]
    assert four.collectives == ("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall")
    assert [p.name for p in four.peers] == ["openmpi", "mpich", "impi"] and four.rounds == 5
    assert [p.name for p in reported["tcp", "plain", 2, 1].peers] == ["openmpi-tcp", "gloo"]
    assert all(SHORTEST <= plan.budget <= LONGEST for plan, _ in runs)
    assert figures(four) == 5 * 4 * len(cases(replace(four, collectives=("alltoall",)), 4))
    assert reported["shm", "plain", 4, ROW].sizes == BANDS[0].sizes


def test_everything_is_started_anew_for_each_launch() -> None:
    runs: list[tuple[Plan, int]] = []
    found = session(LINES, 600.0, runs, launches=3).documents()
    settings = [(plan.transport, plan.buffers, ranks, plan.row) for plan, ranks in runs]
    assert settings == settings[:SETTINGS] * 3 and len(set(settings)) == SETTINGS  # far apart in time
    assert {len(documents) for documents in found.values()} == {3}


def test_what_failed_is_left_out() -> None:
    runs: list[tuple[Plan, int]] = []
    found = session(LINES, 1.0, runs, missing="tcp").documents()
    assert {setting.transport for setting in found} == {"shm"} and len(runs) == SETTINGS
    assert {plan.budget for plan, _ in runs} == {SHORTEST}


def test_the_data_fits_together() -> None:
    for band, following in zip(BANDS, (*BANDS[1:], None), strict=True):
        assert band.sizes[0] == band.first and band.sizes[-1] == band.last
        assert list(band.sizes) == sorted(set(band.sizes))
        assert following is None or band.last < following.first
    for line in LINES:
        assert line.collective in KINDS and set(line.against) <= set(NAMES)
        assert line.setting == Setting(line.transport, line.buffers, line.ranks, line.row)
        assert len(line.bars) == (len(BANDS) if line.row == 1 else 1) and all(0 < bar <= 1 for bar in line.bars)


def test_no_line_for_that() -> None:
    done = CliRunner().invoke(command, ["standing", "-n", "3"])
    assert done.exit_code == 2 and "no line of the table is for that" in done.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_more_is_measured_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
from pathlib import Path
from collectives.bench.plan import Plan
from collectives.bench.report import Screen
from collectives.bench.runs import Runs
runs = Runs(Screen(table=False), Path({str(tmp_path)!r}), "auto")
runs.measure(Plan(("allreduce",), (8,), budget=60.0), 2)
print("went on")
"""
    running = subprocess.Popen([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, text=True)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    # The signal is the launcher's to handle from then on.
    assert eventually(lambda: len(children.read_text().split()) >= 2) and running.poll() is None
    running.send_signal(number)
    printed, _ = running.communicate(timeout=60)
    assert running.returncode == 128 + number and not printed


@pytest.mark.parametrize("name", ["standing", "compare", "meeting", "lifetimes"])
def test_help_names_the_other_commands(name: str) -> None:
    assert f" {name} " in CliRunner().invoke(command, ["--help"]).output


def test_how_busy_a_machine_is() -> None:
    assert busy(0.05) >= 0.0
