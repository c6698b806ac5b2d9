"""Row 1: one rank is killed, in each phase of its work; and the run in which nothing is injected."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

import collectives
from collectives.bench.chaos import moments, work
from collectives.bench.chaos.case import ALL, FINE, Case, Expect
from collectives.bench.chaos.rank import Rank
from collectives.bench.chaos.run import Run
from collectives.rendezvous import open_store

_SLOWLY: Final = 0.05  # seconds between forming and linking: longer than what is injected takes
_LOST: Final = Expect(("PeerLost",))


class _Watched:
    """A store that tells the runner when this rank has first written to it."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._store = open_store(rank.store)
        self._written = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def set(self, key: str, value: bytes, timeout: float = 60.0) -> None:
        self._store.set(key, value, timeout)
        self._note()

    def compare_set(self, key: str, expected: bytes | None, value: bytes | None, timeout: float = 60.0) -> bytes | None:
        found = self._store.compare_set(key, expected, value, timeout)
        if found == value:  # otherwise nothing was written
            self._note()
        return found

    def _note(self) -> None:
        if not self._written:
            self._written = True
            self._rank.tell("published")


def joins(rank: Rank) -> None:
    """Join the group as one rank, and run collectives until one raises an error.

    A rank that will be killed sends a report when it has first written to the rendezvous store.
    """
    store: Any = rank.store
    if rank.is_victim:
        watched = _Watched(rank)
        names = ("get", "wait", "add", "delete", "close")
        store = type("Watched", (), {name: _bound(watched, name) for name in (*names, "set", "compare_set")})()
    comm = rank.init(store=store)
    step = work.steps(rank, comm)
    while True:
        step()


def links(rank: Rank) -> None:
    """Join the group as one rank, and run collectives until one raises an error.

    A rank that will be killed sends a report when the group has formed, before the rank opens its connections.
    """
    if rank.is_victim:
        module: Any = sys.modules[collectives.init.__module__]
        link = module.link

        def reporting(*arguments: Any, **options: Any) -> Any:
            rank.tell("published")
            time.sleep(_SLOWLY)
            return link(*arguments, **options)

        module.link = reporting
    work.until_error(rank)


def _bound(watched: _Watched, name: str) -> Any:
    return lambda _self, *arguments, **named: getattr(watched, name)(*arguments, **named)


def _kill_joining(run: Run) -> None:
    victim = moments.while_joining(run)
    run.injected()
    run.kill(victim)


def _kill_working(run: Run) -> None:
    moments.at_work(run)
    run.injected()
    for victim in run.victims:
        run.kill(victim)


def nothing(run: Run) -> None:
    """Inject no fault: let the ranks run collectives for a moment, then tell them to end."""
    run.wait_for("working", range(run.size))
    run.sleep(0.1)
    run.injected()
    run.say(0, "stop")


def _case(phase: str, **values: Any) -> Case:
    return Case(
        row=1,
        name=f"kill-{phase.replace(' ', '-').replace('_', '-')}",
        injected=f"SIGKILL of one rank, {phase}",
        program=work.until_error,
        inject=_kill_working,
        survivors=_LOST,
        values={"timeout": 60.0, **values},
        runs=(5, 84),
    )


def _early(phase: str, when: str, program: Callable[[Rank], None], join_timeout: float) -> Case:
    """One rank is killed before it works."""
    return Case(
        row=1,
        name=f"kill-{phase}",
        injected=f"SIGKILL of one rank, {when}",
        program=program,
        inject=_kill_joining,
        survivors=_LOST,
        values={"timeout": 60.0, "join_timeout": join_timeout, "work": "barrier"},
        runs=(5, 84),
        keys_stay=True,
    )


CASES: Final = (
    Case(
        row=0,
        name="nothing",
        injected="nothing",
        program=work.until_told,
        inject=nothing,
        survivors=Expect((FINE,)),
        victims=Expect((FINE,)),
        values={"timeout": 60.0, "bytes": 1 << 20},
        transports=ALL,
        runs=(2, 10),
    ),
    _early("joining", "joining", joins, join_timeout=5.0),
    _early("linking", "once the group has formed", links, join_timeout=10.0),
    _case("in a barrier", work="barrier"),
    _case("mid reduce_scatter", work="reduce_scatter"),
    _case("mid allgather", work="allgather"),
    _case("mid payload", work="ring", bytes=32 << 20),
    _case("between operations", work="pauses"),
)
