"""Calls on CUDA arrays by the real NCCL, on a real device: the same cases as on the stand-ins.

Two ranks share device 0, which NCCL allows from 2.32 on. Without MPS each of their operations takes 5 ms. Cases run one
after the other in the same processes, since a start takes longer than most of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.gpu.conftest import UNLED

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(270)]

RESULTS: Final = "results ops sizes deterministic uneven messages many grouped"
GRAPHS: Final = "captured replayed_alone captured_first graph_that_stays"


def test_one_rank(device: str, tmp_path: Path) -> None:
    succeed(run("alone", tmp_path, UNLED, size=1))


def test_two_ranks(shared: dict[str, str], tmp_path: Path) -> None:
    succeed(run(f"{RESULTS} {GRAPHS} wrong_on_one_device", tmp_path, shared, limit=150))


def test_ranks_that_do_not_agree(shared: dict[str, str], tmp_path: Path) -> None:
    succeed(run("late never_first different different_unseen closed", tmp_path, shared, limit=90))


@pytest.mark.parametrize("case", ["killed_before_first_call", "killed_while_forming", "killed_with_a_graph"])
def test_a_rank_that_is_killed_is_named(case: str, shared: dict[str, str], tmp_path: Path) -> None:
    """Those that die in an operation are in test_record.py, many times."""
    ended = run(case, tmp_path, shared)
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)


def test_ranks_that_share_a_device_without_the_switch(device: str, tmp_path: Path) -> None:
    succeed(run("shared_device", tmp_path, UNLED))


def test_four_ranks_under_mps(shared: dict[str, str], mps: dict[str, str], tmp_path: Path) -> None:
    succeed(run("results", tmp_path, {**shared, **mps}, 4, limit=90))


def test_two_ranks_under_mps(shared: dict[str, str], mps: dict[str, str], tmp_path: Path) -> None:
    succeed(run(f"{RESULTS} narrow", tmp_path, {**shared, **mps}, limit=90))
