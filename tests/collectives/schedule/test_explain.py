"""Schedules as text and as pictures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from collectives.algorithms import get, schedule
from collectives.schedule import Builder, VerificationError, draw, explain, explain_group


def test_one_rank() -> None:
    lines = explain(schedule("allreduce", "ring", 1, 3)).splitlines()
    assert lines[:2] == ["allreduce ring, 3 ranks, rank 1", "IN 3 blocks, OUT 3 blocks"]
    assert [line.rstrip() for line in lines[3:-2]] == [
        "    0  send IN[1] >2",
        "    1  reduce OUT[0] = <0 + IN[0]",
        "    2  send OUT[0] >2              after 1",
        "    3  total OUT[2] = <0 + IN[2]",
        "    4  send OUT[2] >2              after 3",
        "    5  recv OUT[1] = <0",
        "    6  send OUT[1] >2              after 5",
        "    7  recv OUT[0] = <0            after 2",
    ]
    assert "<3: the next message from rank 3" in lines[-1]


def test_in_place_waits_for_more() -> None:
    plan = schedule("allreduce", "ring", 1, 3)
    assert "    5  recv OUT[1] = <0            after 0" in explain(plan, in_place=True)


def test_scratch_and_root_are_named() -> None:
    text = explain(schedule("gather", "binomial", 3, 6, 1))
    assert text.startswith("gather binomial, 6 ranks, root 1, rank 3\nIN 1 block, OUT 6 blocks, scratch S0 2 blocks\n")
    assert "copy S0[0] = IN[0]" in text


def test_nothing_to_do_is_said() -> None:
    assert "nothing to do" in explain(schedule("broadcast", "binomial", 0, 1))


def test_long_runs_of_ranks_are_short() -> None:
    text = explain(schedule("allreduce", "one_shot", 3, 100))
    assert "send IN[0] >4..>99 >0 >1 >2\n" in text
    assert "total OUT[0] = <0 + <1 + <2 + IN[0] + <4..<99" in text


def test_a_group_round_by_round() -> None:
    text = explain_group([schedule("allreduce", "recursive_doubling", r, 3) for r in range(3)])
    assert [line.rstrip() for line in text.splitlines()[:-2]] == [
        "allreduce recursive_doubling, 3 ranks: 3 rounds",
        "IN 1 block, OUT 1 block, scratch S0 1 block",
        "",
        "round  rank 0                      rank 1             rank 2",
        "-----  -------------------------   ----------------   ----------------------------",
        "    1  reduce S0[0] = IN[0] + <1   send IN[0] >0",
        "    2  send S0[0] >2                                  send IN[0] >0",
        "       total OUT[0] = S0[0] + <2                      recv S0[0] = <0",
        "                                                      total OUT[0] = S0[0] + IN[0]",
        "    3  send OUT[0] >1              recv OUT[0] = <0",
    ]


def test_wide_groups_are_cut_into_bands() -> None:
    text = explain_group([schedule("allreduce", "ring", r, 8) for r in range(8)], width=100)
    assert max(map(len, text.splitlines())) <= 100
    assert sum(line.startswith("round  rank") for line in text.splitlines()) == 3
    assert all(f"rank {r}" in text for r in range(8))


def test_groups_that_do_not_fit_together_are_refused() -> None:
    b = Builder("allreduce", "made_up", 0, 2, grid=(1, 1))
    b.send(1, b.inp())
    with pytest.raises(VerificationError, match="sends message 1 to rank 1, which receives only 0"):
        explain_group([b.build(), Builder("allreduce", "made_up", 1, 2, grid=(1, 1)).build()])


@pytest.mark.parametrize(
    ("collective", "name", "size"), [("allreduce", "tree", 6), ("alltoall", "bruck", 5), ("gather", "linear", 1)]
)
def test_drawings_show_every_rank_and_chunk(collective: str, name: str, size: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing is optional: pip install matplotlib")
    import matplotlib as mpl

    algorithm = get(collective, name)
    with mpl.rc_context({"svg.fonttype": "none"}):
        draw([algorithm(rank, size) for rank in range(size)], tmp_path / "plan.svg")
    svg = (tmp_path / "plan.svg").read_text()
    assert f"{collective} {name}, {size} ranks" in svg
    assert all(f"rank {rank}" in svg for rank in range(size))
    assert "OUT[0]" in svg
    draw([algorithm(rank, size) for rank in range(size)], tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw([schedule("allreduce", "ring", 0, 1)], tmp_path / "plan.svg")
    assert not list(tmp_path.iterdir())
