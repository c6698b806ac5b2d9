"""When something is injected: moments of a run that several kinds of faults share.

Invariant: what a moment leaves open is drawn from the run's own numbers, so a seed gives the same moment again. All but
`at_work` and `while_joining` note the time of the injection; these two leave that to what injects.
"""

from __future__ import annotations

from typing import Final

from collectives.bench.chaos.run import Run

_JOINING: Final = 0.03  # seconds: longer than joining takes, once a rank has written to the store
_WORKING: Final = 0.1  # seconds of work, within which something is injected


def at_work(run: Run) -> None:
    """Wait until all ranks of `run` are running collectives, and then for a short random time.

    The caller then injects its fault.
    """
    run.wait_for("working", range(run.size))
    run.sleep(run.rng.uniform(0.0, _WORKING))


def while_joining(run: Run) -> int:
    """Wait until the rank of `run` that the fault will hit has begun to join the group, and return its number."""
    (victim,) = run.victims
    run.wait_for("published", [victim])
    run.sleep(run.rng.uniform(0.0, _JOINING))
    return victim


def from_the_beginning(run: Run) -> None:
    """Record the start of `run` as the time of the fault. Tests use this if the ranks cause the fault themselves."""
    run.injected(run.moments["begun"])


def at_first(run: Run, event: str) -> None:
    """Record the time of the fault in `run`: the time at which the first rank reported `event`.

    Waits until all ranks have reported `event`. Tests use this function if the ranks cause the fault themselves.
    """
    run.wait_for(event, range(run.size))
    run.injected(min(found["at"] for member in run.members if (found := member.event(event))))
