"""The runner itself: what ranks must not do is noticed, counted as what it is, and cleaned up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from collectives.bench.chaos.case import Finding, Unit
from collectives.bench.chaos.judging import ranks_of
from collectives.bench.chaos.start import perform
from collectives.bench.chaos.table import lines
from tests.chaos.misbehaving import BAR, CASES

_SURVIVORS = 2  # of 3 ranks
_BY_NAME = {case.name: case for case in CASES}


@cache
def findings() -> dict[str, Finding]:
    """Of one run of each case; several run at a time, because hangs take long."""
    units = [Unit(case.name, "tcp", seed=number) for number, case in enumerate(CASES)]
    return {finding.unit.case: finding for finding in perform(units, jobs=4, table="tests.chaos.misbehaving")}


def text(finding: Finding) -> str:
    return "\n".join((*finding.problems, *finding.leaks))


def test_what_is_right_holds() -> None:
    finding = findings()["raises_well"]
    assert finding.held, text(finding)
    assert (finding.detected, finding.ranks) == (_SURVIVORS, _SURVIVORS)
    assert finding.seconds is not None and 0 < finding.seconds < BAR


@pytest.mark.parametrize("case", ["blames_a_healthy_rank", "blames_a_healthy_rank_as_well", "blames_in_words"])
def test_blame_of_a_healthy_rank_is_counted(case: str) -> None:
    finding = findings()[case]
    assert not finding.held
    assert finding.blamed == _SURVIVORS
    assert finding.detected == 0


def test_a_warning_of_a_healthy_rank_is_counted() -> None:
    finding = findings()["warns_of_a_healthy_rank"]
    assert not finding.held
    assert finding.blamed == _SURVIVORS
    assert "warns of a healthy rank" in text(finding)


def test_a_hang_is_counted_and_ended() -> None:
    finding = findings()["hangs"]
    assert not finding.held
    assert finding.hangs == 3
    assert finding.detected == 0
    assert "hangs" in text(finding)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("names_nobody", "names nobody"),
        ("raises_another_error", "raises OpTimeout, not PeerLost"),
        ("is_slow", "more than 0.5 s"),
        ("raises_too_early", "before anything was injected"),
        ("notices_nothing", "has noticed nothing"),
        ("crashes", "has ended without an outcome"),
        ("is_never_reached", "the fault was not injected: rank 0 has not reported 'ready': StoreError"),
        ("does_not_end", "ends after "),
    ],
)
def test_what_is_missed_is_said(case: str, says: str) -> None:
    finding = findings()[case]
    assert not finding.held
    assert finding.hangs == 0
    assert says in text(finding)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("leaks_a_descriptor", "1 descriptors"),
        ("leaks_a_thread", "1 threads"),
        ("leaks_a_segment", "1 segments"),
        ("leaks_a_child", "1 children"),
        ("leaves_a_key", "files in the store"),
    ],
)
def test_what_is_left_is_counted(case: str, says: str) -> None:
    finding = findings()[case]
    assert not finding.held
    assert finding.detected == _SURVIVORS
    assert any(says in leak for leak in finding.leaks), text(finding)


def test_lines_count_all_runs() -> None:
    found = {line.case: line for line in lines(findings().values(), _BY_NAME)}
    assert found["raises_well"].verdict == "held"
    assert found["hangs"].verdict == "MISSED in 1 of 1" and found["hangs"].hangs == 3
    assert found["blames_in_words"].blamed == _SURVIVORS
    assert found["hangs"].failed == [findings()["hangs"].unit.seed]


def test_a_seed_gives_the_same_run_again() -> None:
    units = [Unit("blames_a_healthy_rank", "tcp", seed) for seed in (1, 2, 3, 1, 2, 3)]
    found = list(perform(units, table="tests.chaos.misbehaving"))
    blame = [finding.problems for finding in found]
    assert blame[:3] == blame[3:]
    assert len({tuple(problems) for problems in blame}) > 1
    assert "--seed 1 " in found[0].unit.command + " "


def test_a_case_that_cannot_run_says_why() -> None:
    (finding,) = perform([Unit("hangs", "inproc", 1)], table="tests.chaos.misbehaving")
    assert finding.absent is not None and "threads of one process" in finding.absent
    (line,) = lines([finding], _BY_NAME)
    assert line.verdict.startswith("not run: ") and line.absent == 1 and line.runs == 0


def test_a_runner_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="runner"):
        list(perform([Unit("no such case", "tcp", 1)], table="tests.chaos.misbehaving"))


def test_nothing_is_left_when_the_iteration_ends_early() -> None:
    before = _processes()
    running: Iterator[Finding] = perform(
        [Unit("raises_well", "tcp", 1), Unit("hangs", "tcp", 2)], table="tests.chaos.misbehaving"
    )
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert _processes() == before


@pytest.mark.parametrize(
    ("message", "ranks"),
    [
        ("rank 3 is gone", {3}),
        ("on ranks 0-2; on rank 4", {0, 1, 2, 4}),
        ("ranks 0, 2 and 5", {0, 2, 5}),
        ("no", set()),
    ],
)
def test_ranks_of_a_message(message: str, ranks: set[int]) -> None:
    assert ranks_of(message) == ranks


def _processes() -> set[str]:
    """The processes of this one."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
