"""The conformance suite with arrays on a real device: by a leader, by NCCL, and through host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.collectives.cuda.test_conformance import COLLECTIVES, WORKER
from tests.gpu.conftest import UNLED

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(270)]

DEVICE: Final = {"WORKER_DEVICE": "0", "SHORT": "1"}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_that_share_a_device(size: int, device: str, tmp_path: Path) -> None:
    """Led by one of them, or, alone, by NCCL."""
    ended = run(COLLECTIVES, tmp_path, DEVICE, size, worker=WORKER, limit=120)
    print(ended[0].output)
    succeed(ended)


@pytest.mark.parametrize("size", [2, 4])
def test_through_host_memory(size: int, device: str, tmp_path: Path) -> None:
    environment = {**DEVICE, **UNLED, "COLLECTIVES_NCCL": "/no/such/file"}
    succeed(run(COLLECTIVES, tmp_path, environment, size, worker=WORKER, limit=120))


@pytest.mark.parametrize("size", [2, 4])
def test_by_nccl_under_mps(size: int, shared: dict[str, str], mps: dict[str, str], tmp_path: Path) -> None:
    succeed(run(COLLECTIVES, tmp_path, {**DEVICE, **shared, **mps}, size, worker=WORKER, limit=120))
