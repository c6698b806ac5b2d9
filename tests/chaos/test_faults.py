"""The short form of the fault matrix: every case that has one, over every transport that it is for.

`collectives bench chaos --long` makes many more runs, and those with the heartbeats' usual limits.
"""

from __future__ import annotations

import re

import pytest

from collectives.bench.chaos.case import Finding
from collectives.bench.chaos.cases import CASES
from collectives.bench.chaos.start import perform, units

_SHORT = [case for case in CASES if case.form != "long"]
_LATE = re.compile(r"takes ([\d.]+) s, more than ([\d.]+) s$")
_JOBS = 4  # runs at a time: most of their time they wait


def _is_only_late(finding: Finding) -> bool:
    """Whether all is right but the time, by less than a factor of 4: the machine may be busy with other tests."""
    late = [_LATE.search(problem) for problem in finding.problems]
    all_late = all(match is not None and float(match[1]) < 4 * float(match[2]) for match in late)
    return bool(late) and all_late and not (finding.leaks or finding.blamed or finding.hangs)


@pytest.mark.parametrize("row", sorted({case.row for case in _SHORT}))
def test_row(row: int) -> None:
    cases = [case for case in _SHORT if case.row == row]
    wanted = units(cases, (), long=False, runs=0, seed=None, ranks=0, store="file")
    found = list(perform(wanted, jobs=_JOBS))
    assert len(found) == len(wanted)
    missed = [
        "\n  ".join((finding.unit.command, *finding.problems, *finding.leaks, *finding.reports))
        for finding in found
        if not (finding.held or finding.absent or _is_only_late(finding))
    ]
    assert not missed, "\n".join(missed)
    if absent := {f"{finding.unit.case}: {finding.absent}" for finding in found if finding.absent}:
        pytest.skip("; ".join(sorted(absent)))
