"""Finds how many TCP sockets a link between two ranks needs: the smallest number that is nearly as fast as the best.

Invariant: the given communicator, and new ones of the same ranks with more sockets for each link, are measured in turn.
The new ones are closed again, except for the chosen one. The choice is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from collectives.calibration.settle import first_within

if TYPE_CHECKING:
    from collectives.calibration.timing import Stopwatch
    from collectives.core.communicator import Communicator

COUNTS: Final = (2, 4, 8)  # numbers to try besides 1: more than 8 sockets only wait for each other
LARGEST: Final = 4 << 20  # bytes of the allreduce that is measured
SMALLEST: Final = 1 << 20  # bytes: sockets are not compared for smaller arrays
GAIN: Final = 0.9  # of the time with fewer sockets, at most: each needs a descriptor and memory in every peer
_DRAWS: Final = 2  # groups for each count: a connection takes one of several paths through a network by chance
_ROUNDS: Final = 5


@contextmanager
def best_linked(comm: Communicator, watch: Stopwatch, nbytes: int) -> Iterator[Communicator]:
    """A context manager that yields a communicator with the best number of TCP connections between two ranks.

    It measures whether several connections are faster than one. If so, it yields a new communicator of the same ranks,
    otherwise `comm` itself. If the user has set the number of connections, it also yields `comm`. All ranks have to
    call this function. `nbytes`: the size of the largest array that the calibration measures. `watch` times the calls.
    """
    nbytes = min(nbytes, LARGEST)
    with ExitStack() as opened:
        found = comm
        if not comm._origin.policy.sockets:
            wider = [opened.enter_context(_wider(comm, count, draw)) for count in COUNTS for draw in range(_DRAWS)]
            x, out = np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
            calls = [partial(group.allreduce, x, out=out) for group in (comm, *wider)]
            seconds = watch.turns(calls, [1] * len(calls), _ROUNDS)
            unlucky = seconds[:, 1:].reshape(_ROUNDS, len(COUNTS), _DRAWS).max(axis=2)
            best = first_within(np.column_stack([seconds[:, 0], unlucky]), GAIN)
            found = wider[_DRAWS * (best - 1)] if best else comm
            for group in wider:
                if group is not found:
                    group.close()
        yield found


def _wider(comm: Communicator, count: int, draw: int) -> Communicator:
    policy = replace(comm._origin.policy, sockets=count)
    group = comm._child(0, comm.rank, f"sockets{count}.{draw}", policy)
    assert group is not None
    return group
