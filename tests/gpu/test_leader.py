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


def test_results(tmp_path: Path) -> None:
    """All dtypes and ops: a kernel for each is compiled, which takes most of the time."""
    succeed(run("collectives_of_all_kinds many results", tmp_path, DEVICE, worker=WORKER, limit=200))


@pytest.mark.parametrize("size", [1, 4])
def test_other_numbers_of_ranks(size: int, tmp_path: Path) -> None:
    environment = {**DEVICE, "SHORT": "1"}
    succeed(run("collectives_of_all_kinds many results", tmp_path, environment, size, worker=WORKER, limit=90))


def test_calls(tmp_path: Path) -> None:
    cases = "own_memory captured_first prepared different late wrong_on_one_device"
    succeed(run(cases, tmp_path, DEVICE, worker=WORKER, limit=90))


def test_a_thousand_replays_of_a_graph(tmp_path: Path) -> None:
    succeed(run("graphs", tmp_path, {**DEVICE, "REPLAYS": "1000"}, worker=WORKER))


@pytest.mark.parametrize("case", ["killed", "killed_in_replay"])
def test_a_leader_that_is_killed_is_named(case: str, tmp_path: Path) -> None:
    """What happens to others is in test_record.py, many times."""
    ended = run(case, tmp_path, {**DEVICE, "KILLED": "0"}, worker=WORKER)
    assert ended[0].returncode == -9, ended[0].output
    succeed(ended, but=0)


def test_host_memory_is_refused(tmp_path: Path) -> None:
    succeed(run("host_refused", tmp_path, {**DEVICE, "ONLY": "leader"}, worker=WORKER))


def test_nccl_beside_a_leader(shared: dict[str, str], tmp_path: Path) -> None:
    environment = {**DEVICE, "NCCL_MULTI_RANK_GPU_ENABLE": shared["NCCL_MULTI_RANK_GPU_ENABLE"]}
    succeed(run("prepared_beside", tmp_path, environment, worker=WORKER))
