"""Rows 13 to 16: ranks that disagree, on who they are, on the protocol, or on the next operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

import collectives
from collectives.bench.chaos import moments
from collectives.bench.chaos.case import ALL, Case, Expect
from collectives.bench.chaos.rank import Rank
from collectives.bench.chaos.run import Run
from collectives.rendezvous._records import VERSION as PROTOCOL

_Call = Callable[[collectives.Communicator, bool], Any]  # given: whether this is the rank that differs
_Program = Callable[[Rank], None]
_SIZES: Final = (2, 3, 4, 5)
_THOUSANDTH: Final = 999  # operations before the one that differs
_N: Final = 60  # elements, which every number of ranks up to 5 divides


def _x(count: int = _N, dtype: str = "float32") -> Any:
    return np.ones(count, dtype)


# What the ranks call; one of them differs in what the name says.
CALLS: Final[dict[str, _Call]] = {
    "count": lambda comm, differs: comm.allreduce(_x(_N * 2 if differs else _N)),
    "dtype": lambda comm, differs: comm.allreduce(_x(dtype="int32" if differs else "float32")),
    "op": lambda comm, differs: comm.allreduce(_x(), "max" if differs else "sum"),
    "root-of-broadcast": lambda comm, differs: comm.broadcast(_x(), root=int(differs)),
    "root-of-reduce": lambda comm, differs: comm.reduce(_x(), root=int(differs)),
    "root-of-gather": lambda comm, differs: comm.gather(_x(), root=int(differs)),
    "root-of-scatter": lambda comm, differs: comm.scatter(
        _x(_N * comm.size).reshape(comm.size, _N) if comm.rank == int(differs) else None, root=int(differs)
    ),
    "collective": lambda comm, differs: comm.allgather(_x()) if differs else comm.allreduce(_x()),
    "collective-or-barrier": lambda comm, differs: comm.barrier() if differs else comm.allreduce(_x()),
    "order": lambda comm, differs: [
        (comm.allreduce if differs is first else comm.reduce_scatter)(_x()) for first in (True, False)
    ],
    "one-left-out": lambda comm, differs: None if differs else comm.broadcast(_x(), root=0),
    "large-count": lambda comm, differs: comm.allreduce(_x((4 << 20) + (4 if differs else 0))),
    "large-op": lambda comm, differs: comm.allreduce(_x(4 << 20), "max" if differs else "sum"),
}


def _calls(rank: Rank) -> None:
    """The same calls on all ranks, then one that differs, then the same ones again until an error comes."""
    comm = rank.init()
    x = _x()
    for _ in range(rank.values["before"]):
        comm.allreduce(x)
    comm.barrier()
    rank.tell("calling")
    CALLS[rank.values["differs"]](comm, rank.is_victim)
    while True:
        comm.allreduce(x)


def _calling(run: Run) -> None:
    moments.at_first(run, "calling")


def _desync(what: str, before: int) -> Case:
    return Case(
        row=16,
        name=f"other-{what}-{'thousandth' if before else 'first'}",
        injected=f"another {what.replace('-', ' ')} in the {'thousandth' if before else 'first'} call of one rank",
        program=_calls,
        inject=_calling,
        survivors=Expect(("DesyncError",)),
        victims=Expect(("DesyncError",)),
        values={"timeout": 20.0, "differs": what, "before": before},
        sizes=_SIZES,
        transports=ALL,
        runs=(1, 8),
    )


def _absent(run: Run) -> None:
    """The victim stays away until the others have given up."""
    moments.from_the_beginning(run)
    run.wait_for("closed", run.survivors)
    for victim in run.victims:
        run.say(victim, "end")


def _other_size(rank: Rank) -> None:
    rank.init(size=rank.size + 1 if rank.is_victim else rank.size)


def _same_number(rank: Rank) -> None:
    """The victim takes the number of the rank after it."""
    rank.init(rank=(rank.number + 1) % rank.size if rank.is_victim else rank.number)


def _never_comes(rank: Rank) -> None:
    if rank.is_victim:
        rank.asked(None)
    else:
        rank.init()


def _other_protocol(rank: Rank) -> None:
    """The victim speaks another version of the protocol by which ranks find each other."""
    if rank.is_victim:
        from collectives.rendezvous import _member, _participant, _records

        for module in (_member, _participant, _records):
            if hasattr(module, "VERSION"):
                setattr(module, "VERSION", _records.VERSION + 1)  # noqa: B010 - mypy: Final
    rank.init()


def _other_wire(rank: Rank) -> None:
    """The victim's engine speaks another version of the links' protocol."""
    if rank.is_victim:
        from collectives.native import _engine

        setattr(_engine, "WIRE_VERSION", _engine.WIRE_VERSION + 1)  # noqa: B010 - mypy: Final
    rank.init()


def _versions(mine: int) -> str:
    """A pattern for messages that have this version and the next one."""
    return rf"(?s)version {mine}\b.*version {mine + 1}\b|version {mine + 1}\b.*version {mine}\b"


def _agree(row: int, name: str, injected: str, program: _Program, expect: Expect, **more: Any) -> Case:
    return Case(
        row=row,
        name=name,
        injected=injected,
        program=program,
        inject=more.pop("inject", moments.from_the_beginning),
        survivors=expect,
        victims=more.pop("victims", expect),
        values={"timeout": 20.0, "join_timeout": more.pop("join_timeout", 20.0)},
        sizes=_SIZES,
        runs=(2, 20),
        keys_stay=True,
        **more,
    )


_MISFIT: Final = Expect(("ConfigMismatch",), names=False)
CASES: Final = (
    _agree(13, "other-size", "one rank is started with another number of ranks", _other_size, _MISFIT, transports=ALL),
    _agree(13, "same-number", "two processes have one rank number", _same_number, _MISFIT, transports=ALL),
    _agree(
        14,
        "never-comes",
        "one rank never joins",
        _never_comes,
        Expect(("OpTimeout",), within=3.0),
        inject=_absent,
        victims=None,
        join_timeout=2.0,
        transports=ALL,
    ),
    _agree(
        15,
        "other-protocol",
        "one rank speaks another version of the rendezvous",
        _other_protocol,
        Expect(("ConfigMismatch",), within=1.0, names=False, text=_versions(PROTOCOL)),
    ),
    _agree(
        15,
        "other-wire",
        "one rank speaks another version of the links",
        _other_wire,
        Expect(("ConfigMismatch",), within=1.0, names=False, text=r"(?s)wire \d+.*wire \d+"),
    ),
    *(_desync(what, before) for what in CALLS for before in (0, _THOUSANDTH)),
)
