"""Ranks that share a real device, led by one of them: the same cases as on the stand-ins, and the figures to reach."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from collectives.transports.leader import find_compiler
from tests.collectives.cuda.ranks import run, succeed
from tests.collectives.cuda.test_leading import WORKER

pytestmark = pytest.mark.gpu

DEVICE: Final = {"WORKER_DEVICE": "0"}


@pytest.fixture(autouse=True)
def compiler(device: str) -> None:
    problem = find_compiler().problem
    if problem:
        pytest.skip(f"needs NVRTC: {problem}")


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("case", ["results", "collectives_of_all_kinds"])
def test_results(case: str, size: int, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, DEVICE, size, worker=WORKER))


@pytest.mark.parametrize("case", ["own_memory", "captured_first", "different", "late"])
def test_calls(case: str, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, DEVICE, worker=WORKER))


def test_a_thousand_replays_of_a_graph(tmp_path: Path) -> None:
    succeed(run("graphs", tmp_path, {**DEVICE, "REPLAYS": "1000"}, worker=WORKER))


@pytest.mark.parametrize("attempt", range(10))
@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "other"])
def test_a_rank_that_is_killed_is_named(lost: int, attempt: int, tmp_path: Path) -> None:
    ended = run("killed", tmp_path, {**DEVICE, "KILLED": str(lost)}, worker=WORKER)
    assert ended[lost].returncode == -9, ended[lost].output
    succeed(ended, but=lost)


def test_figures(device: str) -> None:
    """Prints the figures of docs/gpu.md; fails only if they cannot be measured."""
    command = [sys.executable, str(Path(__file__).with_name("sharing.py"))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=480)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
