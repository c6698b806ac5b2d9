"""Ranks that share a real device, led by one of them: the same cases as on the stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from collectives.transports.leader import find_compiler
from tests.collectives.cuda.ranks import run, succeed
from tests.collectives.cuda.test_leading import WORKER

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(270)]

DEVICE: Final = {"WORKER_DEVICE": "0"}


@pytest.fixture(autouse=True)
def compiler(device: str) -> None:
    problem = find_compiler().problem
    if problem:
        pytest.skip(f"needs NVRTC: {problem}")


def test_all_dtypes_and_ops(tmp_path: Path) -> None:
    """A kernel for each is compiled, which takes most of the time."""
    succeed(run("results", tmp_path, DEVICE, 2, worker=WORKER, limit=150))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_collectives(size: int, tmp_path: Path) -> None:
    cases = "collectives_of_all_kinds results" if size != 2 else "collectives_of_all_kinds"
    succeed(run(cases, tmp_path, {**DEVICE, "SHORT": "1"}, size, worker=WORKER, limit=90))


def test_calls(tmp_path: Path) -> None:
    succeed(run("own_memory captured_first prepared different late", tmp_path, DEVICE, worker=WORKER, limit=90))


def test_wrong_arguments(tmp_path: Path) -> None:
    succeed(run("wrong_on_one_device", tmp_path, DEVICE, worker=WORKER))


def test_a_thousand_replays_of_a_graph(tmp_path: Path) -> None:
    succeed(run("graphs", tmp_path, {**DEVICE, "REPLAYS": "1000"}, worker=WORKER))


@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "other"])
def test_a_rank_that_is_killed_is_named(lost: int, tmp_path: Path) -> None:
    ended = run("killed", tmp_path, {**DEVICE, "KILLED": str(lost)}, worker=WORKER)
    assert ended[lost].returncode == -9, ended[lost].output
    succeed(ended, but=lost)
