"""Finds from which number of bytes on messages over verbs should use the rendezvous protocol instead of the eager one.

Invariant: the given communicator, and new ones of the same ranks that use one of the protocols for all sizes, are
measured in turn. The new ones are closed again. The choice is the same on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from math import log
from typing import TYPE_CHECKING, Final

import numpy as np

from collectives.schedule.table import LEAST_RENDEZVOUS

if TYPE_CHECKING:
    from collectives.calibration.timing import Stopwatch, Times
    from collectives.core.communicator import Communicator

SIZES: Final = tuple(8 << 10 << n for n in range(7))  # bytes of messages: 8 KiB to 512 KiB
NEVER: Final = 1 << 40  # bytes: no message is so long
VARIABLE: Final = "COLLECTIVES_VERBS_DIRECT_FROM"
GAIN: Final = 0.9  # of the usual time of one size, at most, over all sizes
_ROUNDS: Final = 5
_ITERATIONS: Final = 3


@contextmanager
def best_linked(comm: Communicator, watch: Stopwatch) -> Iterator[Communicator]:
    """A context manager that yields a communicator whose links use the faster protocol for each size of messages.

    If nothing is faster than what `comm` does, or if the user has chosen the size, it yields `comm` itself. All ranks
    have to call this function. `watch` times the calls.
    """
    asked = comm._origin.policy.rendezvous or os.environ.get(VARIABLE)
    with ExitStack() as opened:
        found = None
        if not watch.share([1.0 if asked else 0.0])[0]:
            with _linked(comm, NEVER) as eager, _linked(comm, LEAST_RENDEZVOUS) as rendezvous:
                groups = (comm, eager, rendezvous)
                calls = [partial(_neighbours, group, *_arrays(comm, nbytes)) for nbytes in SIZES for group in groups]
                seconds = watch.turns(calls, [_ITERATIONS] * len(calls), _ROUNDS)
            found = fastest(seconds.reshape(_ROUNDS, len(SIZES), len(groups)))
        yield comm if found is None else opened.enter_context(_linked(comm, found))


def fastest(seconds: Times) -> int | None:
    """Returns the size in bytes from which on the rendezvous protocol should be used; None for the usual size.

    `seconds` has the shape (rounds, sizes, 3): for each of `SIZES`, the time of links as they are, of links that only
    use the eager protocol, and of links that only use the rendezvous protocol.
    """
    usual, eager, rendezvous = np.log(np.median(seconds, axis=0)).T
    froms = (*SIZES, 2 * SIZES[-1])
    totals = [float(eager[:number].sum() + rendezvous[number:].sum()) for number in range(len(froms))]
    best = int(np.argmin(totals))
    return froms[best] if totals[best] <= float(usual.sum()) + log(GAIN) else None


def _arrays(comm: Communicator, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(nbytes, np.uint8), np.empty((comm.size, nbytes), np.uint8)


def _neighbours(comm: Communicator, x: np.ndarray, out: np.ndarray) -> None:
    """Every rank sends messages as long as `x` to the next rank, which stores them."""
    comm.allgather(x, out=out, algorithm="ring")


def _linked(comm: Communicator, size: int) -> Communicator:
    group = comm._child(0, comm.rank, f"rendezvous{size}", replace(comm._origin.policy, rendezvous=size))
    assert group is not None
    return group
