"""The short form of the fault matrix: every case that has one, once over every transport that it is for.

`collectives bench chaos --long` makes many more runs, and those with the heartbeats' usual limits.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest

from collectives.bench.chaos.case import Finding
from collectives.bench.chaos.cases import CASES
from collectives.bench.chaos.start import perform, units
from tests.depth import LONG

_SHORT = [case for case in CASES if case.form != "long"]
_LATE = re.compile(r"takes ([\d.]+) s, more than ([\d.]+) s$")
_JOBS = 6  # runs at a time: most of their time they wait


def _is_only_late(finding: Finding) -> bool:
    """Whether all is right but the time, by less than a factor of 4: the machine may be busy with other tests."""
    late = [_LATE.search(problem) for problem in finding.problems]
    all_late = all(match is not None and float(match[1]) < 4 * float(match[2]) for match in late)
    return bool(late) and all_late and not (finding.leaks or finding.blamed or finding.hangs)


@pytest.fixture(scope="module")
def findings(request: pytest.FixtureRequest) -> Mapping[int, Sequence[Finding]]:
    """What the runs of each row have found. All are made by the same few processes, which take long to start."""
    mine = (item for item in request.session.items if isinstance(item, pytest.Function) and item.function is test_row)
    rows = {item.callspec.params["row"] for item in mine}
    cases = {case.name: case for case in _SHORT if case.row in rows}
    wanted = units(cases.values(), (), long=False, runs=0 if LONG else 1, seed=None, ranks=0, store="file")
    found = defaultdict(list)
    for finding in perform(wanted, jobs=_JOBS):
        found[cases[finding.unit.case].row].append(finding)
    assert sum(map(len, found.values())) == len(wanted)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", sorted({case.row for case in _SHORT}))
def test_row(findings: Mapping[int, Sequence[Finding]], row: int) -> None:
    missed = [
        "\n  ".join((finding.unit.command, *finding.problems, *finding.leaks, *finding.reports))
        for finding in findings[row]
        if not (finding.held or finding.absent or _is_only_late(finding))
    ]
    assert findings[row]
    assert not missed, "\n".join(missed)
    if absent := {f"{finding.unit.case}: {finding.absent}" for finding in findings[row] if finding.absent}:
        pytest.skip("; ".join(sorted(absent)))
