"""Messages of CUDA tensors that NCCL carries, on the stand-ins for the driver and NCCL, in a PyTorch without CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import Ended, run, succeed
from tests.lazily import needs
from tests.stand_in.build import StandIn
from tests.stand_in.fixture import stand_in
from tests.warm.parents import TORCH

needs("torch", "PyTorch is not installed: pip install torch")

__all__ = ["stand_in"]

WORKER: Final = Path(__file__).with_name("worker_by_nccl.py")
BY_NCCL: Final = {"COLLECTIVES_TORCH_MESSAGES": "nccl"}
ONE_DEVICE: Final = {"WORKER_DEVICE": "0"}


def ranks(
    case: str,
    stand_in: StandIn,
    folder: Path,
    variables: Mapping[str, str],
    size: int = 2,
    each: Mapping[int, Mapping[str, str]] | None = None,
) -> list[Ended]:
    environment = {**stand_in.environment(folder), **variables}
    return run(case, folder, environment, size, each, WORKER, modules=TORCH)


@pytest.mark.parametrize("case", ["both_ways", "batches", "order", "wrong", "objects", "alone"])
def test_messages(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(ranks(case, stand_in, tmp_path, BY_NCCL))


@pytest.mark.parametrize("case", ["batches", "subgroup"])
def test_three_ranks(case: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(ranks(case, stand_in, tmp_path, BY_NCCL, 3))


def test_a_rank_that_is_killed_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    ended = ranks("killed", stand_in, tmp_path, BY_NCCL)
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)


def test_all_ranks_need_the_same_setting(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(ranks("different", stand_in, tmp_path, {}, each={1: BY_NCCL}))


def test_a_setting_that_does_not_exist(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(ranks("unknown", stand_in, tmp_path, {"COLLECTIVES_TORCH_MESSAGES": "gloo"}))


def test_without_nccl(stand_in: StandIn, tmp_path: Path) -> None:
    lacks = {2: {"COLLECTIVES_NCCL": "/no/such/file"}}
    succeed(ranks("refused", stand_in, tmp_path, {**BY_NCCL, "WORKER_WHY": "rank 2 on"}, 4, lacks))


def test_ranks_that_share_a_device(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(ranks("refused", stand_in, tmp_path, {**BY_NCCL, **ONE_DEVICE, "WORKER_WHY": "use one device"}))


def test_ranks_that_share_a_device_with_nccl(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(ranks("led", stand_in, tmp_path, {**BY_NCCL, **ONE_DEVICE, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}))


@pytest.mark.parametrize("variables", [{}, BY_NCCL], ids=["by default", "by options"])
def test_through_host_memory(variables: dict[str, str], stand_in: StandIn, tmp_path: Path) -> None:
    succeed(ranks("through_host", stand_in, tmp_path, variables))
