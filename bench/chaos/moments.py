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
    """Wait for the moment of a fault: all ranks are at work, for a short, randomly drawn time."""
    run.wait_for("working", range(run.size))
    run.sleep(run.rng.uniform(0.0, _WORKING))


def while_joining(run: Run) -> int:
    """Wait for the moment of a fault: the rank that it hits has begun to join. Returns this rank."""
    (victim,) = run.victims
    run.wait_for("published", [victim])
    run.sleep(run.rng.uniform(0.0, _JOINING))
    return victim


def from_the_beginning(run: Run) -> None:
    """Count times from the start of the run: the ranks themselves make the fault."""
    run.injected(run.moments["begun"])


def at_first(run: Run, event: str) -> None:
    """Count times from the moment when the first rank reported `event`: the ranks themselves make the fault."""
    run.wait_for(event, range(run.size))
    run.injected(min(found["at"] for member in run.members if (found := member.event(event))))
