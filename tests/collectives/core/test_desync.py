"""Ranks that share memory and call different collectives: every one of them raises DesyncError.

A rank that waits for others raises in the call itself. One whose part needs nobody, such as a broadcast's root, may
have returned: then its next call raises, or the end of its `with` block, whichever comes first.
"""

from __future__ import annotations

import itertools
import subprocess
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator
from tests.collectives.groups import outcomes
from tests.depth import LONG
from tests.warm.parents import python

Call = Callable[[Communicator, int], object]


def _ones(n: int, dtype: str = "float64") -> Any:
    return np.ones(n, dtype)


# Each with n elements, a multiple of 12, from every rank.
CALLS: dict[str, Call] = {
    "allreduce": lambda c, n: c.allreduce(_ones(n)),
    "allreduce max": lambda c, n: c.allreduce(_ones(n), "max"),
    "allreduce int64": lambda c, n: c.allreduce(_ones(n, "int64")),
    "allreduce of more": lambda c, n: c.allreduce(_ones(n + 12)),
    "allreduce_many": lambda c, n: c.allreduce_many([_ones(n), _ones(12)]),
    "reduce": lambda c, n: c.reduce(_ones(n)),
    "reduce to 1": lambda c, n: c.reduce(_ones(n), root=1),
    "broadcast": lambda c, n: c.broadcast(_ones(n)),
    "broadcast from 1": lambda c, n: c.broadcast(_ones(n), 1),
    "broadcast of more": lambda c, n: c.broadcast(_ones(n + 1)),
    "broadcast int64": lambda c, n: c.broadcast(_ones(n, "int64")),
    "allgather": lambda c, n: c.allgather(_ones(n)),
    "allgatherv": lambda c, n: c.allgatherv(_ones(n)),
    "gather": lambda c, n: c.gather(_ones(n)),
    "gather to 1": lambda c, n: c.gather(_ones(n), 1),
    "scatter": lambda c, n: c.scatter(_ones(n).reshape(c.size, -1)),
    "scatter from 1": lambda c, n: c.scatter(_ones(n).reshape(c.size, -1), 1),
    "reduce_scatter": lambda c, n: c.reduce_scatter(_ones(n)),
    "alltoall": lambda c, n: c.alltoall(_ones(n)),
    "barrier": lambda c, n: c.barrier(),
}
PAIRS = list(itertools.combinations(CALLS, 2))
SIZES = (12, 516, 8196, 131_076, 262_140)  # elements: on a board, beside it, staged, read where they lie


def where_raised(comm: Communicator, call: Call, elements: int) -> str:
    try:
        call(comm, elements)
    except collectives.DesyncError:
        return "in the call"
    try:
        comm.barrier()
    except collectives.DesyncError:
        return "in the next"
    return "nowhere"


def check(size: int, transport: str, one: str, other: str, odd: int, elements: int) -> None:
    """The rank `odd` calls `other`, all the rest call `one`."""

    def body(comm: Communicator) -> str:
        return where_raised(comm, CALLS[other if comm.rank == odd else one], elements)

    for rank, outcome in enumerate(outcomes(size, body, transport=transport, timeout=20.0)):
        what = f"rank {rank} of {size}, {one} but {other} on rank {odd}, {elements} elements"
        assert outcome.error is None, f"{what}: {outcome.error!r}"
        assert outcome.value in ("in the call", "in the next"), f"{what}: {outcome.value}"


@pytest.mark.parametrize("size", [2, 3, 4] if LONG else [2, 4])
@pytest.mark.parametrize("one", list(CALLS))
def test_every_rank_says_so(size: int, one: str) -> None:
    """All pairs, in both roles; sizes and ranks take turns."""
    begin = list(CALLS).index(one)
    for number, other in enumerate(CALLS):
        if other != one:
            turn = begin + number
            check(size, "shm", one, other, turn % size, SIZES[(begin + 2 * number) % len(SIZES)])


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("odd", [0, 1])
def test_two_ranks_of_which_one_needs_nobody(odd: int, elements: int) -> None:
    for transport in ("shm", "inproc"):
        for one, other in PAIRS:
            if "broadcast" in (one, other) or "reduce to 1" in (one, other) or "gather" in (one, other):
                check(2, transport, one, other, odd, elements)


@pytest.mark.parametrize("transport", ["shm", "inproc"])
def test_more_ranks_than_find_it_out_are_told(transport: str) -> None:
    """Ranks 2 and 3 agree with rank 1, and may still exchange messages when they learn of it."""

    def body(comm: Communicator) -> str:
        try:
            if comm.rank > 1:
                for _ in range(100):
                    comm.send(np.ones(3), 3) if comm.rank == 2 else comm.recv(np.ones(3), 2)
            comm.broadcast(np.ones(3), 0) if comm.rank == 0 else comm.allreduce(np.ones(3))
            comm.barrier()
        except collectives.DesyncError as error:
            return str(error)
        return "nothing"

    for outcome in outcomes(4, body, transport=transport, timeout=20.0):
        assert "broadcast(float64, 3 elements, root 0)" in outcome.value, outcome.value
        assert "allreduce(sum, float64, 3 elements)" in outcome.value, outcome.value


def test_the_error_names_both_sides() -> None:
    def body(comm: Communicator) -> None:
        comm.broadcast(np.ones(5), 0) if comm.rank == 0 else comm.allreduce(np.ones(5))
        comm.barrier()

    first, second = outcomes(2, body, transport="shm")
    assert isinstance(first.error, collectives.DesyncError)
    assert isinstance(second.error, collectives.DesyncError)
    for outcome in (first, second):
        text = str(outcome.error)
        assert "rank 0 (" in text.partition("broadcast(float64, 5 elements, root 0)")[0][-40:], text
        assert "rank 1 (" in text.partition("allreduce(sum, float64, 5 elements)")[0][-40:], text


@pytest.mark.parametrize("transport", ["shm", "inproc"])
@pytest.mark.parametrize(
    "calls",
    [
        ("broadcast", "allreduce"),
        ("allreduce", "reduce"),
        ("broadcast", "broadcast from 1"),  # both only send
        ("reduce to 1", "reduce"),
        ("broadcast", "broadcast of more"),
    ],
)
def test_the_end_of_a_with_block_raises_what_no_call_has(transport: str, calls: tuple[str, str]) -> None:
    def body(comm: Communicator) -> None:
        CALLS[calls[comm.rank]](comm, 12)

    for outcome in outcomes(2, body, transport=transport):
        assert isinstance(outcome.error, collectives.DesyncError), outcome.error


def test_an_error_of_the_users_is_not_replaced() -> None:
    def body(comm: Communicator) -> None:
        comm.broadcast(np.ones(5), comm.rank)
        raise KeyError("mine")

    for outcome in outcomes(2, body, transport="shm"):
        assert isinstance(outcome.error, KeyError)


def test_closing_says_it_by_a_warning() -> None:
    both_called, closed = threading.Barrier(2), threading.Barrier(2)

    def body(comm: Communicator) -> list[str]:
        comm.broadcast(np.ones(5), comm.rank)  # both only send
        both_called.wait(30)
        found = []
        if comm.rank == 0:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                comm.close()
                comm.close()
            found = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
        closed.wait(30)
        return found

    first, second = outcomes(2, body, transport="shm")
    (text,) = first.value
    assert "broadcast(float64, 5 elements, root 0); rank 1" in text
    assert isinstance(second.error, collectives.DesyncError)


def test_a_root_may_leave_before_the_others_have_come() -> None:
    def body(comm: Communicator) -> float:
        x = np.full(5, comm.rank + 1.0)
        if comm.rank == 1:
            comm.recv(np.zeros(1), 0)
        else:
            comm.send(np.zeros(1), 1)
        comm.broadcast(x)
        return float(x[0])

    assert [outcome.value for outcome in outcomes(2, body, transport="shm")] == [1.0, 1.0]


def test_processes_exit_with_an_error(tmp_path: Path) -> None:
    """The issue's own example: none of the two ends well."""
    script = tmp_path / "differ.py"
    script.write_text(
        "import sys, numpy as np, collectives\n"
        "with collectives.init(sys.argv[1], rank=int(sys.argv[2]), size=2, transport='shm') as comm:\n"
        "    (comm.broadcast if comm.rank == 0 else comm.allreduce)(np.ones(5))\n"
    )
    ranks = [
        subprocess.Popen(
            [python(), str(script), f"file://{tmp_path}/store", str(rank)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, output = process.communicate(timeout=60)
            assert process.returncode == 1
            assert "DesyncError: ranks called different operations" in output
    finally:
        for process in ranks:
            process.kill()
            process.wait()
