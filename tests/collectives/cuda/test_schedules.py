"""Schedules on CUDA arrays, on the stand-ins for the driver, NVRTC and NCCL: nothing here has to do with a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.stand_in.build import StandIn, older_nccl


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_algorithm(size: int, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("every_algorithm", tmp_path, stand_in.environment(tmp_path), size))


@pytest.mark.parametrize(
    "case",
    [
        "uneven_algorithms",
        "every_dtype_and_op",
        "in_stream_order",
        "scheduled_in_a_graph",
        "schedules_explained",
        "schedule_of_a_late_rank",
    ],
)
def test_calls(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    size = 2 if case == "schedule_of_a_late_rank" else 3
    succeed(run(case, tmp_path, stand_in.environment(tmp_path), size))


def test_the_table_chooses_a_schedule(stand_in: StandIn, tmp_path: Path) -> None:
    table = tmp_path / "rows.table"
    table.write_text("allreduce any any 64K there_and_back memory=cuda : as asked\n")
    succeed(run("chosen_by_a_row", tmp_path, {**stand_in.environment(tmp_path), "TABLE": str(table)}, 3))


def test_a_rank_without_a_compiler_of_kernels(stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "WHY": "rank 1 on"}
    succeed(run("without_a_compiler", tmp_path, environment, each={1: {"COLLECTIVES_NVRTC": "/no/such/file"}}))


def test_memory_that_other_processes_cannot_open(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("every_dtype_and_op", tmp_path, {**stand_in.environment(tmp_path), "STAND_IN_NO_IPC": "1"}, 3))


def test_a_rank_that_is_killed_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    ended = run("killed_in_schedule", tmp_path, stand_in.environment(tmp_path))
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)


@pytest.mark.parametrize("case", ["every_algorithm", "scheduled_in_a_graph"])
def test_the_oldest_version(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    """Its calls do not block."""
    succeed(run(case, tmp_path, stand_in.environment(tmp_path, older_nccl(stand_in, 21800)), 3))
