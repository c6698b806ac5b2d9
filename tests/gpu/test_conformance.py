"""The conformance suite with arrays on a real device: by a leader, by NCCL, and through host memory.

Also in groups of which only some ranks have a device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import WORKER as CALLS
from tests.collectives.cuda.ranks import run, succeed
from tests.collectives.cuda.test_conformance import COLLECTIVES, HOST, WORKER
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


@pytest.mark.parametrize(("without", "size"), [([1], 2), ([0, 2], 4)], ids=str)
def test_some_ranks_with_arrays_in_host_memory(without: list[int], size: int, device: str, tmp_path: Path) -> None:
    ended = run(COLLECTIVES, tmp_path, DEVICE, size, dict.fromkeys(without, HOST), worker=WORKER, limit=120)
    for one in ended:
        print(one.output)
    succeed(ended)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_large_arrays_of_some_ranks(transport: str, device: str, tmp_path: Path) -> None:
    """They are copied while the calls run."""
    environment = {**DEVICE, "TRANSPORT": transport}
    cases = "mixed_reductions mixed_moves mixed_messages mixed_many"
    succeed(run(cases, tmp_path, environment, each={1: HOST}, worker=CALLS, limit=120))
