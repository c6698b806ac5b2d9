"""Calls on CUDA arrays by NCCL: order, results, errors and aborts, on the stand-ins for the driver and NCCL.

Nothing here has to do with a device: the stand-ins work on host memory.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.stand_in.build import StandIn, build_nccl, older_nccl

WITHOUT_CUPY: Final = Path(__file__).with_name("without_cupy.py")
UNLED: Final = {"COLLECTIVES_NVRTC": "/no/such/file"}  # no rank leads


@pytest.mark.parametrize(
    "case",
    [
        *("results", "ops", "sizes", "order", "plans", "groups", "explained", "deterministic"),
        "bad_input wrong_on_one_device",
        *("captured_first", "uneven", "messages", "many", "grouped", "captured", "replayed_alone", "held"),
        *("graph_that_stays", "captured_beside", "captured_elsewhere", "captured_together"),
        "narrow",
    ],
)
def test_calls(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, stand_in.environment(tmp_path)))


def test_four_ranks(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("results", tmp_path, stand_in.environment(tmp_path), 4))


def test_ranks_that_share_a_device_without_nvrtc(stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), **UNLED}
    succeed(run("shared_device", tmp_path, environment))


@pytest.mark.parametrize("case", ["late", "never_first", "different", "different_unseen", "different_memory", "closed"])
def test_ranks_that_do_not_agree(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, stand_in.environment(tmp_path)))


@pytest.mark.parametrize(
    "case", ["killed_in_operation", "killed_before_first_call", "killed_while_forming", "killed_with_a_graph"]
)
def test_a_rank_that_is_killed_is_named(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    ended = run(case, tmp_path, stand_in.environment(tmp_path))
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)


@pytest.mark.parametrize("device", [{}, {"WORKER_DEVICE": "0"}], ids=["NCCL", "leader"])
def test_a_rank_that_stops_is_lost(device: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("silent", tmp_path, {**stand_in.environment(tmp_path), **device}, grace=3.0), but=1)


def test_one_rank(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("alone", tmp_path, stand_in.environment(tmp_path), size=1))


def test_the_table_and_the_caller_choose(stand_in: StandIn, tmp_path: Path) -> None:
    table = tmp_path / "rows.table"
    table.write_text("allreduce any any any staging memory=cuda\n")
    succeed(run("asked", tmp_path, {**stand_in.environment(tmp_path), "TABLE": str(table)}))


def with_secret(folder: Path) -> dict[str, str]:
    secret = folder / "job.key"
    secret.touch(0o600)
    secret.write_text("ab" * 32)
    return {"COLLECTIVES_SECRET_FILE": str(secret)}


def test_records_are_authenticated(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("ops", tmp_path, {**stand_in.environment(tmp_path), **with_secret(tmp_path)}))


@pytest.mark.parametrize(
    ("forged", "device"),
    [("nccl/member/", {}), ("nccl/id/", {}), ("leader/device/", {}), ("leader/record/", {"WORKER_DEVICE": "0"})],
)
def test_a_forged_record_is_refused(forged: str, device: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), **with_secret(tmp_path), **device, "FORGED": forged}
    succeed(run("forged", tmp_path, environment))


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


@pytest.mark.parametrize(
    "variables", [{"STAND_IN_MOST_MIB": "0"}, {"STAND_IN_NCCL_FULL": "1"}], ids=["for signals", "for NCCL"]
)
def test_a_device_whose_memory_is_full(variables: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("full", tmp_path, stand_in.environment(tmp_path), each={1: variables}))


@pytest.mark.parametrize("device", [{}, {"WORKER_DEVICE": "0"}], ids=["NCCL", "leader"])
@pytest.mark.parametrize("case", ["full_for_a_result", "prepared_without_a_device"])
def test_what_goes_wrong_on_one_rank(case: str, device: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, {**stand_in.environment(tmp_path), **device}))


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


@pytest.mark.parametrize("version", [22303])
def test_8_bit_floats_need_a_newer_version(version: int, stand_in: StandIn, tmp_path: Path) -> None:
    environment = stand_in.environment(tmp_path, older_nccl(stand_in, version))
    succeed(run("narrow_refused", tmp_path, environment))


def test_parts_of_different_lengths_where_nccl_cannot_be_used(stand_in: StandIn, tmp_path: Path) -> None:
    environment = stand_in.environment(tmp_path)
    succeed(run("uneven_on_the_host", tmp_path, environment, each={1: {"COLLECTIVES_NCCL": "/no/such/file"}}))


@pytest.mark.parametrize(
    ("variables", "blocks"),
    [
        ({}, 64),
        ({"COLLECTIVES_NCCL_MAX_CTAS": "8"}, 8),
        ({"COLLECTIVES_NCCL_SHARE": "1"}, 64),
        # Both ranks on one device, which has 4 multiprocessors
        ({"WORKER_DEVICE": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1", **UNLED}, 2),
    ],
    ids=["as NCCL wants", "bounded", "one for all", "one device"],
)
def test_memory_is_bounded(variables: dict[str, str], blocks: int, stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), **variables, "BLOCKS": str(blocks)}
    succeed(run("limited", tmp_path, environment))


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"COLLECTIVES_NCCL_MAX_CTAS": "many"}, "COLLECTIVES_NCCL_MAX_CTAS is 'many'"),
        ({"COLLECTIVES_NCCL_MAX_CTAS": "4"}, "different values of COLLECTIVES_NCCL_MIN_CTAS"),
        ({"COLLECTIVES_NCCL_MIN_CTAS": "9", "COLLECTIVES_NCCL_MAX_CTAS": "4"}, "more than"),
    ],
    ids=["no number", "ranks that differ", "more than most"],
)
def test_wrong_bounds(variables: dict[str, str], why: str, stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "WHY": why}
    succeed(run("refused", tmp_path, environment, each={1: variables}))


@pytest.mark.parametrize("case", ["results", "uneven", "many", "captured", "late", "killed_before_first_call"])
def test_the_oldest_version(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    """It has neither revoke nor a native alltoall, and its calls do not block."""
    ended = run(case, tmp_path, stand_in.environment(tmp_path, older_nccl(stand_in, 21800)))
    succeed(ended, but=1 if case.startswith("killed") else None)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_ranks_that_are_threads(devices: int, stand_in: StandIn, tmp_path: Path) -> None:
    """With one device one of them leads; with devices of their own NCCL runs the calls."""
    (ended,) = run("threads", tmp_path, {**stand_in.environment(tmp_path), "STAND_IN_DEVICES": str(devices)}, size=1)
    succeed([ended])
    engine = "leader" if devices == 1 else "nccl"
    assert ended.output.count(engine) == max(2, devices), ended.output


def test_threads_whose_devices_reach_each_other_without_nccl(stand_in: StandIn, tmp_path: Path) -> None:
    """The stand-in refuses what uses another device's memory without peer access."""
    environment = {**stand_in.environment(tmp_path), "STAND_IN_PEERS": "1", "COLLECTIVES_NCCL": "/no/such/file"}
    succeed(run("threads_with_a_leader", tmp_path, environment, size=1))


@pytest.mark.parametrize("device", [{}, {"WORKER_DEVICE": "0"}], ids=["NCCL", "leader"])
def test_without_cupy(device: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("", tmp_path, {**stand_in.environment(tmp_path), **device}, worker=WITHOUT_CUPY))


@pytest.mark.parametrize("device", [{}, {"WORKER_DEVICE": "0"}], ids=["NCCL", "leader"])
def test_helpers_that_are_forked(device: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("forked", tmp_path, {**stand_in.environment(tmp_path), **device}))


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
@pytest.mark.parametrize(
    "variables", [{}, {"COLLECTIVES_NCCL": "/no/such/file", "WORKER_DEVICE": "0", **UNLED}], ids=["NCCL", "host memory"]
)
def test_compiled_functions_of_jax(variables: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("compiled", tmp_path, {**stand_in.environment(tmp_path), **variables}))
