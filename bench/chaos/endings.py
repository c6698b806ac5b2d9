"""Rows 23, 24 and 33: signals in an operation, processes that end without closing, and exceptions in user code."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

from collectives.bench.chaos import moments, work
from collectives.bench.chaos.case import EVERYBODY, FINE, Case, Ends, Expect
from collectives.bench.chaos.rank import Rank
from collectives.bench.chaos.run import Run

_LOST: Final = Expect(("PeerLost",))
_INTERRUPTED: Final = Expect(("KeyboardInterrupt",), within=1.0, names=False)

# --- row 23


def _handled(rank: Rank) -> None:
    """As until_error; SIGTERM raises SystemExit, as many programs arrange."""

    def leave(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    work.until_error(rank)


def _stuck(rank: Rank) -> None:
    """The victim waits in an operation that the others have not called; they call it when the runner asks."""
    comm = rank.init()
    comm.barrier()
    rank.tell("working")
    if not rank.is_victim:
        rank.asked(None)
    rank.tell("called")
    while True:
        comm.barrier()


def _signal(number: signal.Signals) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        moments.at_work(run)
        run.injected()
        for victim in run.victims:
            run.signal(victim, number)

    return inject


def _signal_stuck(run: Run) -> None:
    (victim,) = run.victims
    run.wait_for("working", range(run.size))
    run.wait_for("called", [victim])
    run.sleep(0.2)
    run.injected()
    run.signal(victim, signal.SIGINT)
    run.wait_for("closed", [victim])
    run.injected(name="called")
    for rank in run.survivors:
        run.say(rank, "call")


def _interrupted(name: str, injected: str, inject: Callable[[Run], None], **more: Any) -> Case:
    settings: dict[str, Any] = {"program": work.until_error, "survivors": _LOST, "victims": _INTERRUPTED, **more}
    values = {"timeout": 60.0, "work": "ring", "bytes": 16 << 20, **settings.pop("values", {})}
    return Case(row=23, name=name, injected=injected, inject=inject, values=values, runs=(2, 50), **settings)


# --- rows 24 and 33: the victim is a new interpreter, which ends as it would without the runner

_WORKS: Final = """
import os, sys, threading, time
import numpy as np
from collectives.bench.chaos.work import steps
comm = rank.init()
step = steps(rank, comm)
step()
rank.tell("working")
step()
"""
_ENDS: Final = {
    "sys-exit": "rank.tell('leaving'); sys.exit(0)",
    "last-line": "rank.tell('leaving')",
    "os-exit": "rank.tell('leaving'); os._exit(0)",
    "sys-exit-work-pending": """
kept = comm.allreduce_async(np.ones(1 << 18, np.float32))
rank.tell('leaving'); sys.exit(0)
""",
    "sys-exit-thread-in-call": """
def calls():
    while True:
        step()
threading.Thread(target=calls, daemon=True).start()
time.sleep(0.05)
rank.tell('leaving'); sys.exit(0)
""",
    "sys-exit-in-cycle": """
class Holder: pass
holder = Holder(); holder.holder, holder.comm = holder, comm
rank.tell('leaving'); sys.exit(0)
""",
}
_RAISES: Final = {
    "exception": "rank.tell('leaving'); raise ValueError('of the user')",
    "exception-in-with": """
with comm:
    step()
    rank.tell('leaving'); raise ValueError('of the user')
""",
    "exception-work-pending": """
kept = comm.allreduce_async(np.ones(1 << 18, np.float32))
rank.tell('leaving'); raise ValueError('of the user')
""",
    "exception-in-excepthook": """
def hook(*_): step(); raise KeyError('in the hook')
sys.excepthook = hook
rank.tell('leaving'); raise ValueError('of the user')
""",
}


def _ends(rank: Rank) -> None:
    if rank.is_victim:
        rank.become(_WORKS + rank.values["ends"])
    work.until_error(rank)


def _leaving(run: Run) -> None:
    run.wait_for("leaving", run.victims)
    run.injected(max(event["at"] for victim in run.victims if (event := run.members[victim].event("leaving"))))


def _ending(row: int, name: str, script: str, codes: tuple[int, ...], **more: Any) -> Case:
    return Case(
        row=row,
        name=f"ends-by-{name}",
        injected=f"one rank ends by {name.replace('-', ' ')}, without closing",
        program=_ends,
        inject=_leaving,
        survivors=_LOST,
        ends=Ends(2.0, codes),
        values={"timeout": 60.0, "work": "allreduce", "bytes": 1 << 20, "ends": script},
        runs=(1, 20),
        **more,
    )


def _caught(rank: Rank) -> None:
    """An exception of user code is caught between operations, and keeps what its frames have."""
    comm = rank.init()
    step = work.steps(rank, comm)
    rank.tell("working")
    kept: list[object] = []
    for number in range(200):
        step()
        try:
            if rank.is_victim and number % 3 == 0:
                kept.append(comm.empty(1000))
                raise ValueError("of the user")
        except ValueError as error:
            kept.append(error)


def _working(run: Run) -> None:
    run.wait_for("working", range(run.size))
    run.injected()


CASES: Final = (
    _interrupted("interrupted", "SIGINT to one rank in an operation", _signal(signal.SIGINT)),
    _interrupted(
        "interrupted-stuck",
        "SIGINT to a rank that waits for the others",
        _signal_stuck,
        program=_stuck,
        survivors=Expect(("PeerLost",), since="called"),
    ),
    _interrupted(
        "interrupted-all",
        "SIGINT to all ranks, as of a terminal",
        _signal(signal.SIGINT),
        chosen=EVERYBODY,
        victims=Expect(("KeyboardInterrupt",), within=1.0, names=False),
    ),
    _interrupted(
        "terminated",
        "SIGTERM to one rank in an operation",
        _signal(signal.SIGTERM),
        victims=None,
        ends=Ends(1.0, (-signal.SIGTERM,)),
    ),
    _interrupted(
        "terminated-handled",
        "SIGTERM, with a handler that raises SystemExit",
        _signal(signal.SIGTERM),
        program=_handled,
        victims=Expect(("SystemExit",), within=1.0, names=False),
    ),
    *(_ending(24, name, script, (0,)) for name, script in _ENDS.items()),
    _ending(24, "sys-exit-of-all", _ENDS["sys-exit"], (0,), chosen=EVERYBODY),
    *(_ending(33, name, script, (1,)) for name, script in _RAISES.items()),
    Case(
        row=33,
        name="exception-caught",
        injected="user code raises and catches exceptions between operations",
        program=_caught,
        inject=_working,
        survivors=Expect((FINE,)),
        victims=Expect((FINE,)),
        values={"timeout": 20.0, "bytes": 1 << 12},
        transports=("shm", "tcp", "inproc"),
    ),
)
