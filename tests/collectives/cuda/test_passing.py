"""Groups in which some ranks have arrays on devices and others in host memory, on the stand-in for the CUDA driver.

Nothing here has to do with a device. Ranks without one have a stand-in that lacks a function.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.depth import LONG
from tests.stand_in.build import StandIn

NO_DEVICE: Final = {"STAND_IN_LACKS": "cuStreamWriteValue32"}


@pytest.mark.parametrize(
    ("without", "size", "transport"),
    [
        *(([1], 2, "tcp"), ([0], 3, "shm"), ([1, 2], 3, "tcp")),
        *((([1], 2, "shm"), ([0], 3, "tcp"), ([1, 2], 3, "shm")) if LONG else ()),
    ],
    ids=str,
)
def test_results(without: list[int], size: int, transport: str, stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "TRANSPORT": transport}
    cases = "mixed_reductions mixed_moves mixed_messages"
    succeed(run(cases, tmp_path, environment, size, each=dict.fromkeys(without, NO_DEVICE)))


@pytest.mark.parametrize(("without", "transport"), [([1], "tcp"), ([0], "shm"), ([], "shm")], ids=str)
def test_lists(without: list[int], transport: str, stand_in: StandIn, tmp_path: Path) -> None:
    """The last one: all ranks have devices, which do not reach each other, and there is no NCCL."""
    environment = {**stand_in.environment(tmp_path), "TRANSPORT": transport, "COLLECTIVES_NCCL": "/no/such/file"}
    succeed(run("mixed_many", tmp_path, environment, each=dict.fromkeys(without, NO_DEVICE)))


def test_a_list_that_fails_between_two_buckets(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("mixed_many_in_part", tmp_path, stand_in.environment(tmp_path), each={1: NO_DEVICE}))


def test_calls_in_the_background(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("mixed_in_background", tmp_path, stand_in.environment(tmp_path), each={1: NO_DEVICE}))


@pytest.mark.parametrize("algorithm", ["ring", "two_shot"])  # the second one needs all input at once
def test_a_stream_that_is_held_up_for_too_long(algorithm: str, stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**stand_in.environment(tmp_path), "ALGORITHM": algorithm}
    succeed(run("mixed_held", tmp_path, environment, each={1: NO_DEVICE}))


def test_a_rank_that_is_killed_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    ended = run("mixed_killed", tmp_path, stand_in.environment(tmp_path), 3, each={2: NO_DEVICE})
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)
