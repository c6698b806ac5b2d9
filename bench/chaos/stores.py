"""Row 9: the Redis server through which the ranks meet is killed, restarted or emptied meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from collectives.bench.chaos.case import FINE, Case, Expect
from collectives.bench.chaos.rank import Rank
from collectives.bench.chaos.run import Run

_Injection = Callable[[Run], None]
_Moment = Callable[[Run, _Injection], None]
_JOINING: Final = 0.3  # seconds: longer than joining takes
_AWAY: Final = 1.0  # seconds between the end of a server and its next start


def _meets(rank: Rank) -> None:
    """Form the group; the victim comes when the runner tells it to."""
    if rank.is_victim:
        rank.asked(None)
    rank.init().barrier()


def _while_waiting(run: Run, inject: Callable[[Run], None]) -> None:
    """All but one have joined and wait for it."""
    run.wait_for("joining", run.survivors)
    run.sleep(run.rng.uniform(0.1, 0.5))
    run.injected()
    inject(run)
    for victim in run.victims:
        run.say(victim, "come")


def _at_any_moment(run: Run, inject: Callable[[Run], None]) -> None:
    """All come at once."""
    for victim in run.victims:
        run.say(victim, "come")
    run.sleep(run.rng.uniform(0.0, _JOINING))
    run.injected()
    inject(run)


def _kill(run: Run) -> None:
    run.server.kill()


def _restart(run: Run) -> None:
    run.server.kill()
    run.sleep(_AWAY)
    run.server.start()


def _flush(run: Run) -> None:
    run.server.flush()


def _case(name: str, injected: str, moment: _Moment, what: _Injection) -> Case:
    expect = Expect((FINE, "StoreError"), within=5.0, names=False)
    return Case(
        row=9,
        name=name,
        injected=injected,
        program=_meets,
        inject=lambda run: moment(run, what),
        survivors=expect,
        victims=expect,
        values={"timeout": 20.0, "join_timeout": 6.0},
        servers=True,
        runs=(1, 20),
        keys_stay=True,
    )


CASES: Final = (
    _case("redis-killed-waiting", "Redis is killed while ranks wait for one", _while_waiting, _kill),
    _case("redis-killed-joining", "Redis is killed while all ranks join", _at_any_moment, _kill),
    _case("redis-restarted-waiting", "Redis restarts, empty, while ranks wait for one", _while_waiting, _restart),
    _case("redis-restarted-joining", "Redis restarts, empty, while all ranks join", _at_any_moment, _restart),
    _case("redis-flushed-waiting", "Redis is emptied while ranks wait for one", _while_waiting, _flush),
    _case("redis-flushed-joining", "Redis is emptied while all ranks join", _at_any_moment, _flush),
)
