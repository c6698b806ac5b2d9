"""Calls on CUDA arrays by the real NCCL, on a real device: the same cases as on the stand-ins.

Two ranks share device 0, which NCCL allows from 2.32 on. Without MPS each of their operations takes 5 ms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from collectives.native import _engine
from collectives.transports import nccl
from tests.collectives.cuda.ranks import run, succeed

pytestmark = pytest.mark.gpu

# Without NVRTC no rank leads.
UNLED: Final = {"WORKER_DEVICE": "0", "COLLECTIVES_NVRTC": "/no/such/file"}
SHARED: Final = {**UNLED, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
_SHARES_FROM: Final = 23200


@pytest.fixture
def shared(device: str) -> dict[str, str]:
    """The environment of ranks that share a device."""
    version = _engine.load_nccl(nccl.find().path).version
    if version < _SHARES_FROM:
        pytest.skip(f"needs NCCL 2.32, in which ranks may share a device; this is {version}")
    return SHARED


def test_one_rank(device: str, tmp_path: Path) -> None:
    succeed(run("alone", tmp_path, UNLED, size=1))


@pytest.mark.parametrize(
    "case",
    [
        *("results", "ops", "sizes", "deterministic"),
        *("uneven", "messages", "many", "captured", "replayed_alone", "captured_first"),
    ],
)
def test_two_ranks(case: str, shared: dict[str, str], tmp_path: Path) -> None:
    succeed(run(case, tmp_path, shared))


@pytest.mark.parametrize("case", ["late", "never_first", "different", "different_unseen", "closed"])
def test_ranks_that_do_not_agree(case: str, shared: dict[str, str], tmp_path: Path) -> None:
    succeed(run(case, tmp_path, shared))


@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("case", ["killed_in_operation", "killed_before_first_call", "killed_while_forming"])
def test_a_rank_that_is_killed_is_named(case: str, attempt: int, shared: dict[str, str], tmp_path: Path) -> None:
    ended = run(case, tmp_path, shared)
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)


def test_ranks_that_share_a_device_without_the_switch(device: str, tmp_path: Path) -> None:
    succeed(run("shared_device", tmp_path, UNLED))
