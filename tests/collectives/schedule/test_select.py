"""The automatic choice exists for every call, is one that works, and has a reason."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from collectives import algorithms
from collectives.arrays.wire import WireName
from collectives.schedule import table as table_module
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.defaults import DEFAULTS, MEASURED, UNEVEN
from collectives.schedule.select import ladder, select, select_wire
from collectives.schedule.table import Row, Situation, join, parse

SIZES = [*range(1, 20), 32, 33, 64, 65, 100, 1000]
BYTES = [0, 1, 8, 1 << 10, 16 << 10, (16 << 10) + 1, 64 << 10, 256 << 10, 1 << 20, 1 << 30, 1 << 40]
KINDS = ["self", "inproc", "shm", "tcp", "somebody's own"]


@pytest.mark.parametrize(
    ("collective", "uneven"),
    [
        *((c, False) for c in COLLECTIVES),
        *((c, True) for c in ("allgather", "gather", "scatter", "alltoall", "reduce_scatter")),
    ],
)
def test_there_is_a_choice_for_everything(collective: str, uneven: bool) -> None:
    for size, nbytes, kind in itertools.product(SIZES, BYTES, KINDS):
        usable = {a.name for a in algorithms.algorithms(collective, size, uneven=uneven)}
        choice = select(collective, nbytes, Situation(size, kind), usable.__contains__)
        assert choice.algorithm in usable
        assert choice.reason


HOST_ROWS = [row for row in DEFAULTS.rows if row.memory == "host" and not row.wire and row not in UNEVEN.rows]


@pytest.mark.parametrize("row", HOST_ROWS, ids=lambda row: f"{row.collective}-{row.algorithm}-{row.bytes}")
def test_every_row_names_an_algorithm_and_is_reached(row: Row) -> None:
    assert row.algorithm in {a.name for a in algorithms.algorithms(row.collective)}
    kind = row.kinds[-1] if row.kinds else "somebody's own"
    per_host, hosts = (row.per_host or (0, 0))[0], (row.hosts or (0, 0))[0]
    most = 16 if row in MEASURED.rows and not row.oversubscribed and "shm" in row.kinds else 64
    size = per_host * hosts or min(row.ranks[1], max(row.ranks[0], most))
    choice = select(
        row.collective, row.bytes, Situation(size, kind, bool(row.oversubscribed), per_host, hosts), lambda _: True
    )
    assert choice.row is row
    assert (choice.algorithm, choice.reason) == (row.algorithm, row.reason)
    assert row.source == ("built in" if row in MEASURED.rows else "built in, by the simulator")


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "barrier"])
def test_arrays_on_a_device_have_rows_of_their_own(collective: str) -> None:
    def chosen(usable: str) -> str:
        found = select(collective, 1 << 20, Situation(4, "tcp"), lambda name: name in usable, memory="cuda")
        assert found.row.memory == "cuda" and found.row.source == "built in"
        return found.algorithm

    assert chosen("staging") == "staging"
    by_nccl = collective not in ("scan", "exscan")
    assert chosen("nccl staging") == ("nccl" if by_nccl else "staging")


def test_rows_for_devices_are_read_and_written() -> None:
    text = "allreduce  shm  2  64K  staging  memory=cuda  : short\n"
    (row,) = parse(text).rows
    assert (row.memory, row.algorithm, row.rule) == ("cuda", "staging", "allreduce shm 2 64K staging memory=cuda")
    assert parse(str(row)).rows == (row,)
    for wrong in ("nccl memory=tape", "staging memory="):
        with pytest.raises(ValueError, match="memory="):
            parse(f"allreduce any any any {wrong}")


FORMATS = parse(
    """
    allreduce  tcp  4  256K  float32  hosts=4 wire=auto : short
    allreduce  tcp  4  any   int8     hosts=4 wire=auto
    allgather  tcp  4  any   bf16     hosts=4 wire=auto
    """,
    "own",
)


@pytest.mark.parametrize(
    ("collective", "situation", "nbytes", "chosen"),
    [
        ("allreduce", Situation(4, "tcp", per_host=1, hosts=4), 256 << 10, "float32"),
        ("allreduce", Situation(4, "tcp", per_host=1, hosts=4), (256 << 10) + 1, "int8"),
        ("allgather", Situation(4, "tcp", per_host=1, hosts=4), 8, "bf16"),
        ("reduce_scatter", Situation(4, "tcp", per_host=1, hosts=4), 1 << 30, "float32"),
        ("allreduce", Situation(4, "tcp", per_host=4, hosts=1), 1 << 30, "float32"),
        ("allreduce", Situation(3, "tcp", per_host=1, hosts=3), 1 << 30, "float32"),
        ("allreduce", Situation(4, "shm", per_host=4, hosts=1), 1 << 30, "float32"),
    ],
)
def test_formats_have_rows_of_their_own(collective: str, situation: Situation, nbytes: int, chosen: str) -> None:
    table = join([FORMATS, DEFAULTS])
    choice = select_wire(collective, nbytes, situation, table)
    assert choice.algorithm == chosen
    assert choice.row.wire and choice.row.source.startswith("own" if choice.row in FORMATS.rows else "built in")
    algorithm = select(collective, nbytes, situation, lambda _: True, table)
    assert algorithm.row in DEFAULTS.rows and not algorithm.row.wire
    assert not any(row.wire for row in ladder(collective, situation, lambda _: True, table))
    assert parse(str(choice.row)).rows == (choice.row,)


def test_rows_name_the_formats_that_there_are() -> None:
    names = ("float32", *get_args(WireName))
    assert names == table_module.FORMATS
    assert {row.collective for row in DEFAULTS.rows if row.wire} == set(table_module.WIRED)
    with pytest.raises(LookupError, match="no wire format for broadcast"):
        select_wire("broadcast", 8, Situation(2, "shm"))


def test_an_algorithm_that_does_not_work_here_is_passed_over() -> None:
    assert select("alltoall", 8, Situation(64, "tcp"), lambda name: True).algorithm == "bruck"
    assert select("alltoall", 8, Situation(64, "tcp"), lambda name: name != "bruck").algorithm == "pairwise"
    with pytest.raises(LookupError, match="allreduce of 8 bytes among 2 ranks"):
        select("allreduce", 8, Situation(2, "shm"), lambda name: False)


OWN = parse(
    """
    allreduce  tcp  4-8  1K   tree   per-host=2-4 oversubscribed=no : of our own
    allreduce  tcp  4-8  any  star   per-host=2-
    """,
    "own",
)


@pytest.mark.parametrize(
    ("situation", "nbytes", "chosen"),
    [
        (Situation(4, "tcp", per_host=2), 1024, "tree"),
        (Situation(4, "tcp", per_host=2), 1025, "star"),
        (Situation(8, "tcp", per_host=4), 8, "tree"),
        (Situation(8, "tcp", per_host=5), 8, "star"),
        (Situation(4, "tcp", oversubscribed=True, per_host=2), 8, "star"),
        (Situation(4, "tcp", per_host=1, hosts=4), 8, "one_shot"),
        (Situation(4, "tcp"), 8, "one_shot"),
        (Situation(3, "tcp", per_host=3, hosts=1), 8, "recursive_doubling"),
        (Situation(4, "shm", per_host=4), 8, "one_shot"),
        (Situation(3, "tcp", per_host=2, hosts=2), 8, "recursive_doubling"),
        (Situation(20, "tcp", per_host=1, hosts=20), 8, "recursive_doubling"),
    ],
)
def test_rows_on_top_decide_where_all_their_conditions_hold(situation: Situation, nbytes: int, chosen: str) -> None:
    choice = select("allreduce", nbytes, situation, lambda name: True, join([OWN, DEFAULTS]))
    assert choice.algorithm == chosen
    assert choice.row.source.startswith("own, line " if chosen in ("tree", "star") else "built in")


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather", "broadcast"])
def test_hosts_with_several_ranks_get_algorithms_that_know_of_hosts(collective: str) -> None:
    """For large arrays, where it matters which bytes cross the network; not where each host has one rank."""
    for hosts, per_host, expected in ((4, 8, True), (2, 8, True), (4, 1, False), (1, 4, False), (0, 0, False)):
        situation = Situation(max(hosts * per_host, 4), "tcp", per_host=per_host, hosts=hosts)
        name = select(collective, 1 << 30, situation, lambda name: True).algorithm
        assert name.startswith("hierarchical") == algorithms.get(collective, name).hosts == expected


def test_a_row_without_a_reason_says_so() -> None:
    choice = select("allreduce", 8, Situation(4, "tcp", True, 2), lambda name: True, OWN)
    assert choice.reason == "no reason given"


def test_a_ladder_ends_with_the_first_row_for_any_size() -> None:
    table = join([OWN, DEFAULTS])
    steps = ladder("allreduce", Situation(4, "tcp", per_host=2), lambda name: True, table)
    assert [(row.bytes, row.algorithm) for row in steps] == [(1024, "tree"), (1 << 62, "star")]
