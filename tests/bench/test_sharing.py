"""`collectives bench sharing`: that it measures what it says; its figures are for quiet machines."""

from __future__ import annotations

import os

import pytest

from collectives.bench.sharing import CASES, Found
from tests.bench.running import command


@pytest.mark.parametrize(
    ("found", "well"),
    [
        (Found([0.1, 0.9], [0, 0]), True),
        (Found([0.1, 1.0], [0, 0]), False),
        (Found([0.1, 0.1], [0, 10]), False),
    ],
)
def test_what_is_well(found: Found, well: bool) -> None:
    assert found.well is well


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_line_for_each_case() -> None:
    # Code 1 where another program ran, too: the figures are no matter of a test.
    done = command("bench", "sharing", code=None)
    assert done.returncode in (0, 1), done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"{case.ranks} ranks {case.name}" for case in CASES]
    assert "20 turns on its core" in lines[1] and all("sleeps in a call" in line for line in lines)
    assert any("MISSED" in line for line in lines) == bool(done.returncode)
