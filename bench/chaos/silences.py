"""Rows 3, 4, 7 and 8: ranks that stand still, are slow, or keep the GIL; and a pause of all ranks."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final

from collectives.bench.chaos import deaths, moments, work
from collectives.bench.chaos.case import EVERYBODY, FINE, SILENT, Case, Expect
from collectives.bench.chaos.rank import Rank
from collectives.bench.chaos.run import Run

LIMIT: Final = 2.0  # seconds: of heartbeats, in short forms
QUICK: Final = {"COLLECTIVES_HEARTBEAT_INTERVAL": "0.2", "COLLECTIVES_HEARTBEAT_LIMIT": str(LIMIT)}
SHORT_SILENT: Final = LIMIT + 2.0  # seconds: bar H for that limit
WORKS: Final[dict[str, dict[str, Any]]] = {  # what ranks do as one falls silent
    "in-a-barrier": {"work": "barrier"},
    "in-8-bytes": {"work": "allreduce", "bytes": 8},
    "in-64-MiB": {"work": "allreduce", "bytes": 64 << 20},
    "in-the-background": {"work": "async", "bytes": 1 << 20},
}
_AFTER: Final = 0.5  # seconds of work after a rank has been woken
_THRESHOLD: Final = 30.0  # seconds: a rank for which others wait longer is named in a warning


def _stop_and_wake(run: Run) -> None:
    """Stop the victims for the case's time; then the ranks work on, and end."""
    _stop(run)
    run.sleep(run.values["stop"])
    run.injected(name="woken")
    for victim in run.victims:
        run.wake(victim)
    run.sleep(_AFTER)
    run.say(0, "stop")


def _stop(run: Run) -> None:
    moments.at_work(run)
    run.injected()
    for victim in run.victims:
        run.stop(victim)


def _stop_joining(run: Run) -> None:
    victim = moments.while_joining(run)
    run.injected()
    run.stop(victim)


def _slow(rank: Rank) -> None:
    """Ranks work; the victim then does something else for a while, and comes back."""
    comm = rank.init()
    step = work.steps(rank, comm)
    step()
    rank.tell("away")
    if rank.is_victim:
        time.sleep(rank.values["away"])
    step()


def _keeps_gil(rank: Rank) -> None:
    """The victim's interpreter stands still: a library keeps the GIL in a long call."""
    comm = rank.init()
    step = work.steps(rank, comm)
    step()
    rank.tell("away")
    if rank.is_victim:
        libc = ctypes.PyDLL(None)  # calls of which do not release the GIL
        libc.poll(None, 0, int(rank.values["away"] * 1e3))
    step()


def _away(run: Run) -> None:
    moments.at_first(run, "away")
    # Processes that wait for the victim have an outcome before it is back; the run lasts until it is.
    run.wait_for("closed", run.victims, run.values["away"] + 10.0)


def forms(make: Callable[[str, float, dict[str, str]], Case]) -> tuple[Case, Case]:
    """Return two versions of a test that injects a fault: with short and with the default heartbeat intervals.

    `make` makes one version. Its arguments are a suffix for the name, the seconds within which ranks must raise an
    error, and environment variables.
    """
    return make("-quick", SHORT_SILENT, QUICK), make("", SILENT, {})


def form(end: str) -> str:
    return "short" if end else "long"


JOINING: Final = {"joining": deaths.joins, "linking": deaths.links}


def _silent(phase: str, values: dict[str, Any]) -> tuple[Case, Case]:
    joining = phase in JOINING

    def make(end: str, bar: float, environment: dict[str, str]) -> Case:
        return Case(
            row=4,
            name=f"silent-{phase}{end}",
            injected=f"SIGSTOP of one rank, {phase.replace('-', ' ')}",
            program=JOINING.get(phase, work.until_error),
            inject=_stop_joining if joining else _stop,
            survivors=Expect(("PeerLost",), within=bar),
            values=values,
            environment=environment,
            form=form(end),
            keys_stay=joining,
        )

    return forms(make)


def _stopped(end: str, bar: float, environment: dict[str, str]) -> Case:
    return Case(
        row=4,
        name=f"stopped-long{end}",
        injected="SIGSTOP of one rank for longer than the limit, then SIGCONT",
        program=work.until_error,
        inject=_stop_and_wake,
        survivors=Expect(("PeerLost",), within=bar),
        victims=Expect(("StaleEpoch",), within=1.0, names=False, since="woken"),
        values={"stop": 4.0 if end else 60.0, "bytes": 1 << 20},
        environment=environment,
        form=form(end),
    )


def _briefly(end: str, _bar: float, environment: dict[str, str]) -> Case:
    return Case(
        row=3,
        name=f"stopped-briefly{end}",
        injected="SIGSTOP of one rank for half the limit, then SIGCONT",
        program=work.until_told,
        inject=_stop_and_wake,
        survivors=Expect((FINE,)),
        victims=Expect((FINE,)),
        values={"stop": 1.0 if end else 5.0, "bytes": 1 << 20},
        environment=environment,
        form=form(end),
    )


def _paused(end: str, _bar: float, environment: dict[str, str]) -> Case:
    return Case(
        row=4,
        name=f"all-paused{end}",
        injected="SIGSTOP of all ranks for longer than the timeout and the limit, then SIGCONT",
        program=work.until_told,
        inject=_stop_and_wake,
        survivors=Expect((FINE,)),
        victims=Expect((FINE,)),
        values={"stop": 4.0 if end else 15.0, "timeout": 2.0 if end else 10.0, "bytes": 1 << 20},
        environment=environment,
        chosen=EVERYBODY,
        form=form(end),
        runs=(1, 25),
    )


def _gil(end: str, _bar: float, environment: dict[str, str]) -> Case:
    timeout = 3.0 if end else 30.0
    return Case(
        row=8,
        name=f"keeps-gil{end}",
        injected="one rank keeps the GIL for longer than the timeout and the limit",
        program=_keeps_gil,
        inject=_away,
        survivors=Expect(("OpTimeout",), within=timeout + 2.0),
        values={"away": 5.0 if end else 70.0, "timeout": timeout, "bytes": 1 << 12},
        environment=environment,
        form=form(end),
        runs=(1, 5),
    )


CASES: Final = (
    *forms(_briefly),
    *forms(_stopped),
    *(case for phase, values in WORKS.items() for case in _silent(phase, values)),
    *(case for phase in JOINING for case in _silent(phase, {"work": "barrier"})),
    *forms(_paused),
    Case(
        row=7,
        name="slow",
        injected="one rank comes 35 s late",
        program=_slow,
        inject=_away,
        survivors=Expect((FINE,), within=_THRESHOLD + 3.0, warns=r"^rank {} .*has not begun"),
        victims=Expect((FINE,)),
        values={"away": 35.0, "bytes": 1 << 12},
        form="long",
        runs=(1, 5),
    ),
    *forms(_gil),
)
