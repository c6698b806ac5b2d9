"""Calls of ranks that share a device, led by one of them: results, order, graphs, errors, on the stand-ins.

Nothing here has to do with a device: the stand-in for the driver runs the kernels' source on host memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.stand_in.build import StandIn

WORKER: Final = Path(__file__).with_name("leading.py")
OWN: Final = {0: {"WORKER_DEVICE": "0"}, 1: {"WORKER_DEVICE": "1"}}  # a device for each rank


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_have_the_bits_of_the_cpu(size: int, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("results", tmp_path, stand_in.environment(tmp_path), size, worker=WORKER))


@pytest.mark.parametrize("size", [2, 4])
def test_collectives(size: int, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("collectives_of_all_kinds many", tmp_path, stand_in.environment(tmp_path), size, worker=WORKER))


@pytest.mark.parametrize(
    "case",
    [
        "memory_of_all_kinds",
        "memory_used_again",
        "many_allocations",
        "own_memory kept",
        "chosen",
        "groups",
        "waited_for",
        "copied",
        "compiled",
    ],
)
def test_memory_and_choice(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, stand_in.environment(tmp_path), worker=WORKER))


def test_the_most_calls_in_graphs(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("captured_most", tmp_path, stand_in.environment(tmp_path), worker=WORKER))


@pytest.mark.parametrize("case", ["order", "graphs", "prepared", "delayed"])
def test_streams_with_a_delayed_rank(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, stand_in.environment(tmp_path), 3, worker=WORKER))


@pytest.mark.parametrize(
    ("case", "waits", "on"),
    [
        ("order", "main", [0]),  # of the leader's stream, for the kernel
        ("order", "main", [1, 2]),  # of the others' streams
        ("order", "other", [0]),  # of the kernel, for all ranks' streams
        ("graphs", "main", [0]),  # of the leader's graph, for the others
        ("graphs", "main", [1, 2]),  # of the others' graphs, for the leader
    ],
    ids=["leader", "others", "kernel", "graph of the leader", "graphs of the others"],
)
def test_no_wait_is_superfluous(case: str, waits: str, on: list[int], stand_in: StandIn, tmp_path: Path) -> None:
    """If one of the waits is left out of streams, results are wrong or early. The last rank is late."""
    each = {rank: {"STAND_IN_DROP_WAITS": waits} for rank in on}
    ended = run(case, tmp_path, stand_in.environment(tmp_path), 3, each, worker=WORKER, grace=5.0)
    assert any("AssertionError" in one.output for one in ended), [one.output for one in ended]


@pytest.mark.parametrize(
    "case",
    [
        *("bad_input wrong_on_one_device", "captured_first", "different", "late", "out_of_memory"),
        "no_room_for_a_result",
    ],
)
def test_what_goes_wrong(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run(case, tmp_path, stand_in.environment(tmp_path), worker=WORKER))


def test_a_rank_that_gives_up_is_not_written_any_more(stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "STAND_IN_TILE_US": "2000"}
    succeed(run("fenced", tmp_path, environment, worker=WORKER))


@pytest.mark.parametrize("switch", ["1", "0"], ids=["shared by NCCL", "not"])
def test_nccl_beside_a_leader(switch: str, stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "NCCL_MULTI_RANK_GPU_ENABLE": switch}
    succeed(run("prepared_beside", tmp_path, environment, worker=WORKER))


def test_memory_is_kept_by_nccl(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("kept", tmp_path, stand_in.environment(tmp_path), each=OWN, worker=WORKER))


@pytest.mark.parametrize("transport", ["leader", "nccl"])
def test_host_memory_is_refused(transport: str, stand_in: StandIn, tmp_path: Path) -> None:
    each = OWN if transport == "nccl" else {}
    environment = {**stand_in.environment(tmp_path), "ONLY": transport}
    succeed(run("host_refused", tmp_path, environment, each=each, worker=WORKER))


@pytest.mark.parametrize(
    ("case", "known"),
    [("killed", {}), ("killed_in_replay", {}), ("killed_in_replay", {"KNOWN": "1"})],
    ids=["calls", "replays", "known before"],
)
@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "other"])
def test_a_rank_that_is_killed_is_named(
    lost: int, case: str, known: dict[str, str], stand_in: StandIn, tmp_path: Path
) -> None:
    environment = {**stand_in.environment(tmp_path), **known, "KILLED": str(lost)}
    ended = run(case, tmp_path, environment, worker=WORKER)
    assert ended[lost].returncode == -9, ended[lost].output
    succeed(ended, but=lost)


def test_a_rank_that_is_killed_in_replays_by_nccl_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "KILLED": "1"}
    ended = run("killed_in_replay", tmp_path, environment, each=OWN, worker=WORKER)
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)


def test_a_rank_that_is_killed_while_ranks_meet_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    ended = run("killed_while_meeting", tmp_path, stand_in.environment(tmp_path), worker=WORKER)
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)


@pytest.mark.parametrize("peers", ["1", "0"], ids=["reach each other", "do not"])
def test_devices_that_are_not_shared(peers: str, stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "STAND_IN_PEERS": peers}
    succeed(run("own_devices", tmp_path, environment, worker=WORKER))


@pytest.mark.parametrize(
    ("case", "size"),
    [
        ("staged", 2),
        ("staged_calls", 2),
        ("staged_calls", 3),
        ("staged_again", 2),
        ("staged_in_part", 2),
        ("staged_without_memory", 2),
        ("staged_interrupted", 2),
    ],
)
def test_staging(case: str, size: int, stand_in: StandIn, tmp_path: Path) -> None:
    """Ranks whose devices do not reach each other, without NCCL."""
    environment = {
        **stand_in.environment(tmp_path),
        "STAND_IN_PEERS": "0",
        "COLLECTIVES_NCCL": "/no/such/file",
        "WHY": "cannot be reached",
    }
    each = {rank: {"WORKER_DEVICE": str(rank)} for rank in range(size)}
    succeed(run(case, tmp_path, environment, size, each, worker=WORKER))


@pytest.mark.parametrize(
    "variables",
    [{"COLLECTIVES_NVRTC": "/no/such/file"}, {"STAND_IN_LACKS": "cuIpcGetMemHandle"}],
    ids=["no NVRTC", "driver that lacks a function"],
)
def test_a_rank_that_cannot_take_part(variables: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "WHY": "rank 1 on"}
    succeed(run("unable", tmp_path, environment, each={1: variables}, worker=WORKER))


def test_records_are_authenticated(stand_in: StandIn, tmp_path: Path) -> None:
    secret = tmp_path / "job.key"
    secret.touch(0o600)
    secret.write_text("ab" * 32)
    environment = {**stand_in.environment(tmp_path), "COLLECTIVES_SECRET_FILE": str(secret)}
    succeed(run("chosen", tmp_path, environment, worker=WORKER))
