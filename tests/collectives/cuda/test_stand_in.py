"""Calls on CUDA arrays by NCCL: order, results, errors and aborts, on the stand-ins for the driver and NCCL.

Nothing here has to do with a device: the stand-ins work on host memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.stand_in.build import StandIn, build_nccl


@pytest.mark.parametrize(
    "case",
    [
        *("results", "ops", "sizes", "order", "plans", "groups", "explained", "deterministic", "bad_input"),
        *("captured_first", "shared_device"),
    ],
)
def test_calls(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, stand_in.environment(tmp_path)))


@pytest.mark.parametrize("case", ["late", "never_first", "different", "different_unseen", "different_memory", "closed"])
def test_ranks_that_do_not_agree(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, stand_in.environment(tmp_path)))


@pytest.mark.parametrize("case", ["killed_in_operation", "killed_before_first_call", "killed_while_forming"])
def test_a_rank_that_is_killed_is_named(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    ended = run(case, tmp_path, stand_in.environment(tmp_path))
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)


def test_one_rank(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("alone", tmp_path, stand_in.environment(tmp_path), size=1))


def test_the_table_and_the_caller_choose(stand_in: StandIn, tmp_path: Path) -> None:
    table = tmp_path / "rows.table"
    table.write_text("allreduce any any any staging memory=cuda\n")
    succeed(run("asked", tmp_path, {**stand_in.environment(tmp_path), "TABLE": str(table)}))


def test_records_are_authenticated(stand_in: StandIn, tmp_path: Path) -> None:
    secret = tmp_path / "job.key"
    secret.touch(0o600)
    secret.write_text("ab" * 32)
    succeed(run("ops", tmp_path, {**stand_in.environment(tmp_path), "COLLECTIVES_SECRET_FILE": str(secret)}))


def test_no_file_is_left(stand_in: StandIn, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    succeed(run("groups", tmp_path, stand_in.environment(files)))
    assert list(files.iterdir()) == []


@pytest.mark.parametrize(
    "variables",
    [
        {"STAND_IN_CUDA": "11080"},
        {"STAND_IN_LACKS": "cuStreamWriteValue32"},
        {"COLLECTIVES_NCCL": "/no/such/file"},
    ],
    ids=["old driver", "driver that lacks a function", "no NCCL"],
)
def test_a_rank_that_cannot_use_nccl(variables: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "WHY": "rank 1 on"}
    succeed(run("refused", tmp_path, environment, each={1: variables}))


def test_nccl_alone_needs_it_on_all_ranks(stand_in: StandIn, tmp_path: Path) -> None:
    """Rank 0, which has NCCL, waits for rank 1, which does not join."""
    environment = {**stand_in.environment(tmp_path), "WHY": "cannot be used"}
    ended = run("refused_alone", tmp_path, environment, size=1, each={0: {"COLLECTIVES_NCCL": "/no/such/file"}})
    succeed(ended)


@pytest.mark.parametrize("case", ["refused", "refused_alone"])
def test_versions_that_differ(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    other = build_nccl(stand_in.folder, tmp_path / "other" / "libnccl.so.2", "STAND_IN_VERSION=22809")
    environment = {**stand_in.environment(tmp_path), "WHY": "rank 1 on"}
    ended = run(case, tmp_path, environment, each={1: {"COLLECTIVES_NCCL": str(other)}})
    succeed(ended)


@pytest.mark.parametrize("case", ["results", "late", "killed_before_first_call"])
def test_the_oldest_version(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    """It has neither revoke nor a native alltoall."""
    old = build_nccl(stand_in.folder, tmp_path / "old" / "libnccl.so.2", "STAND_IN_VERSION=21800", "STAND_IN_OLD")
    ended = run(case, tmp_path, stand_in.environment(tmp_path, old))
    succeed(ended, but=1 if case.startswith("killed") else None)
