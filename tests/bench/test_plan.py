"""A run as a value, and what is refused before anything starts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from collectives.algorithms import algorithms
from collectives.bench.cases import IN_PLACE, OUT_OF_PLACE
from collectives.bench.plan import DTYPES, PeerPlan, Plan, cases, load, memory_needed

PLAN = Plan(("allreduce",), (8, 1024))


def test_a_plan_survives_the_way_to_a_rank() -> None:
    plan = replace(PLAN, peers=(PeerPlan("gloo", "/bin/python"),), modules=("a", "b"), iterations=3, json="/x")
    assert Plan.from_json(plan.to_json()) == plan


def test_ranks_need_not_agree_on_the_file() -> None:
    assert replace(PLAN, json="/a").fingerprint == replace(PLAN, json="/b").fingerprint == PLAN.fingerprint
    assert replace(PLAN, warmup=6).fingerprint != PLAN.fingerprint


def test_lines_of_a_table() -> None:
    found = cases(replace(PLAN, dtypes=("float32", "int8"), ops=("sum", "max")), 2)
    reported = [(c.dtype, c.op, c.nbytes, c.root, c.algorithm) for c in found]
    assert reported == [(d, o, n, -1, "auto") for d in ("float32", "int8") for o in ("sum", "max") for n in (8, 1024)]


def test_everything_means_what_fits() -> None:
    found = cases(replace(PLAN, sizes=(64,), dtypes=("all",), ops=("all",)), 2)
    assert {c.dtype for c in found} == set(DTYPES)
    assert {c.op for c in found if c.dtype == "float32"} == {"sum", "prod", "min", "max", "avg"}
    assert "band" in {c.op for c in found if c.dtype == "int8"}
    assert {c.algorithm for c in cases(replace(PLAN, algorithm="all"), 3)} == {
        a.name for a in algorithms("allreduce", 3)
    }


def test_sizes_that_come_to_the_same_are_one_line() -> None:
    assert [c.nbytes for c in cases(Plan(("allgather",), (1, 8, 16, 17, 32)), 4)] == [16, 32]


def test_data_that_is_not_combined_has_no_op() -> None:
    (only,) = cases(Plan(("broadcast",), (64,), ops=("max",), root=1), 2)
    assert (only.op, only.root) == ("none", 1)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (replace(PLAN, root=2), "root 2"),
        (replace(PLAN, dtypes=("float31",)), "no dtype 'float31' (did you mean 'float32'?); there are all, float16"),
        (replace(PLAN, ops=("mean",)), "no op 'mean' (did you mean 'avg'?); there are all, sum"),
        (replace(PLAN, ops=("band",)), "band has no meaning for float32"),
        (replace(PLAN, algorithm="fastest"), "no algorithm 'fastest' for allreduce; there are"),
        (replace(PLAN, collectives=("allgather",), places=(IN_PLACE,)), "only out-of-place"),
        (replace(PLAN, collectives=("broadcast",), places=(OUT_OF_PLACE,)), "only in-place"),
        (replace(PLAN, dtypes=("all",), ops=()), "nothing to measure"),
    ],
)
def test_what_does_not_exist_or_fit(plan: Plan, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cases(plan, 2)


def test_memory_that_arrays_need() -> None:
    assert memory_needed(PLAN, 3) == 3 * 2 * 1024
    assert memory_needed(replace(PLAN, places=(IN_PLACE,)), 3) == 3 * 1024
    assert memory_needed(replace(PLAN, limits=("copy",), peers=(PeerPlan("gloo", ""),)), 3) == 3 * 6 * 1024


def test_modules_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "breaks_on_import.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match="cannot import breaks_on_import: ZeroDivisionError"):
        load(("breaks_on_import",), str(tmp_path))
    with pytest.raises(ValueError, match="cannot import not_there_at_all: ModuleNotFoundError"):
        load(("not_there_at_all",), str(tmp_path))
