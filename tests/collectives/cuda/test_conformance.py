"""The conformance suite with arrays on a device, by each of the engines, on the stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.stand_in.build import StandIn

WORKER: Final = Path(__file__).with_name("conformance.py")
REDUCTIONS: Final = "allreduce reduce reduce_scatter reduce_scatterv scan exscan"
MOVES: Final = "broadcast allgather allgatherv gather gatherv scatter scatterv alltoall alltoallv send"
COLLECTIVES: Final = f"{REDUCTIONS} {MOVES}"
# A device for each rank, and no NCCL: through host memory.
STAGED: Final = {"COLLECTIVES_NCCL": "/no/such/file", "STAND_IN_PEERS": "0"}
# A rank without a device.
HOST: Final = {"WORKER_HOST": "1", "CUDA_VISIBLE_DEVICES": "", "STAND_IN_DEVICES": "0"}


@pytest.mark.parametrize(
    ("engine", "size", "variables"),
    [
        ("leader", 1, {}),
        ("leader", 2, {}),
        ("leader", 4, {}),
        ("nccl", 2, {}),
        ("nccl", 4, {}),
        ("", 2, STAGED),
        ("", 4, STAGED),
    ],
)
def test_collectives(engine: str, size: int, variables: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), **variables, "SHORT": "1"}
    each = {rank: {"WORKER_DEVICE": str(rank)} for rank in range(size)} if engine != "leader" else {}
    ended = run(COLLECTIVES, tmp_path, environment, size, each, worker=WORKER, limit=200)
    succeed(ended)
    assert (f"'{engine}'" in ended[0].output) == bool(engine), ended[0].output


def test_some_ranks_with_arrays_in_host_memory(stand_in: StandIn, tmp_path: Path) -> None:
    """Ranks without a device have a driver that shows none."""
    ended = run(
        "allreduce reduce_scatterv scatterv alltoallv send", tmp_path, {**stand_in.environment(tmp_path), "SHORT": "1"},
        3, each={1: HOST}, worker=WORKER, limit=200,
    )  # fmt: skip
    succeed(ended)
