"""NCCL inside hosts and host memory between them, on stand-ins and simulated hosts.

Nothing here has to do with a device, or with a network between hosts.

Ranks of different hosts reach each other by TCP over the loopback interface.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.collectives.cuda.ranks import run, succeed
from tests.depth import LONG
from tests.stand_in.build import StandIn

ROWS: Final = "".join(
    f"{name} any any any hierarchy memory=cuda hosts=2- : asked for\n"
    for name in ("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter")
)


def _environment(stand_in: StandIn, folder: Path, hosts: str, rows: str = ROWS) -> dict[str, str]:
    table = folder / "rows.table"
    table.write_text(rows)
    return {
        **stand_in.environment(folder),
        "WORKER_HOSTS": hosts,
        "TABLE": str(table),
        "COLLECTIVES_INTERFACE": "lo",
    }


@pytest.mark.parametrize("hosts", ["0,1,0,1", *(["0,0,1,1", "0,0,1,1,2,2"] if LONG else [])])
def test_a_hierarchy(hosts: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("hierarchy", tmp_path, _environment(stand_in, tmp_path, hosts), len(hosts.split(","))))


@pytest.mark.parametrize("hosts", ["0,1,1,0", *(["0,0,1,1", "0,0,0,1,1,1"] if LONG else [])])
def test_other_collectives_than_allreduce(hosts: str, stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("hierarchy_of_collectives", tmp_path, _environment(stand_in, tmp_path, hosts), len(hosts.split(","))))


def test_the_built_in_table_chooses_it_where_nccl_works_only_inside_hosts(stand_in: StandIn, tmp_path: Path) -> None:
    bounded = {"COLLECTIVES_NCCL_MAX_CTAS": "7"}  # on one host, so that not all ranks have the same settings
    environment = _environment(stand_in, tmp_path, "0,0,1,1", "")
    succeed(run("hierarchy_by_default", tmp_path, environment, 4, each={2: bounded, 3: bounded}))


def test_a_call_may_name_it(stand_in: StandIn, tmp_path: Path) -> None:
    succeed(run("hierarchy_by_name", tmp_path, _environment(stand_in, tmp_path, "0,0,1,1", ""), 4))


@pytest.mark.parametrize(
    ("hosts", "variables", "why"),
    [
        ("0,0,1", {}, "hosts have different numbers of ranks, from 1 to 2"),
        ("0,1", {}, "every host has one rank"),
        ("0,0,1,1", {"COLLECTIVES_NCCL_MAX_CTAS": "7"}, "different values of"),
    ],
    ids=["uneven hosts", "one rank on each", "NCCL cannot be used on a host"],
)
def test_where_it_cannot_run(
    hosts: str, variables: dict[str, str], why: str, stand_in: StandIn, tmp_path: Path
) -> None:
    environment = {**_environment(stand_in, tmp_path, hosts), "WHY": why}
    succeed(run("no_hierarchy", tmp_path, environment, len(hosts.split(",")), each={1: variables}))


def test_a_rank_that_is_killed_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    ended = run("hierarchy_of_a_killed_rank", tmp_path, _environment(stand_in, tmp_path, "0,0,1,1"), 4)
    assert ended[1].returncode == -9, ended[1].output
    succeed(ended, but=1)
