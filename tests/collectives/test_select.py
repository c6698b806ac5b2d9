"""The automatic choice exists for every call, is one that works, and has a reason."""

from __future__ import annotations

import itertools

import pytest

from collectives import algorithms
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.select import TABLE, Situation, select

SIZES = [*range(1, 20), 32, 33, 64, 65, 100, 1000]
BYTES = [0, 1, 8, 1 << 10, 16 << 10, (16 << 10) + 1, 64 << 10, 256 << 10, 1 << 20, 1 << 30, 1 << 40]
KINDS = ["self", "inproc", "shm", "tcp", "somebody's own"]


@pytest.mark.parametrize(
    ("collective", "uneven"),
    [*((c, False) for c in COLLECTIVES), *((c, True) for c in ("allgather", "gather", "scatter", "alltoall"))],
)
def test_there_is_a_choice_for_everything(collective: str, uneven: bool) -> None:
    for size, nbytes, kind in itertools.product(SIZES, BYTES, KINDS):
        usable = {a.name for a in algorithms.algorithms(collective, size, uneven=uneven)}
        choice = select(collective, nbytes, Situation(size, kind), usable.__contains__)
        assert choice.algorithm in usable
        assert choice.reason


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.collective}-{row.algorithm}-{row.bytes}")
def test_every_row_names_an_algorithm_and_is_reached(row: object) -> None:
    assert row in TABLE
    found = [r for r in TABLE if r is row]
    (mine,) = found
    assert mine.algorithm in {a.name for a in algorithms.algorithms(mine.collective)}
    kind = mine.kinds[-1] if mine.kinds else "tcp"
    size = min(mine.ranks[1], max(mine.ranks[0], 64))
    choice = select(mine.collective, mine.bytes, Situation(size, kind), lambda name: True)
    assert (choice.algorithm, choice.reason) == (mine.algorithm, mine.reason)


def test_an_algorithm_that_does_not_work_here_is_passed_over() -> None:
    assert select("alltoall", 8, Situation(8, "tcp"), lambda name: True).algorithm == "bruck"
    assert select("alltoall", 8, Situation(8, "tcp"), lambda name: name != "bruck").algorithm == "pairwise"
    with pytest.raises(LookupError, match="allreduce of 8 bytes among 2 ranks"):
        select("allreduce", 8, Situation(2, "shm"), lambda name: False)
