"""The floors of this machine: what no collective can go below, measured beside it.

Invariant: measured like everything else, by all ranks at the same time, in turns with the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from bench.cases import Case
from bench.loop import Pace, Samples, elapsed, sample
from bench.measure import AGAIN, Unsupported
from collectives import Communicator


class Copy:
    """Every rank copies as many bytes as the case's size, from one ordinary array to another, at the same time."""

    name: Final = "copy"
    is_ours: Final = False

    def __init__(self, comm: Communicator) -> None:
        self._comm: Final = comm
        self._call: partial[Any] | None = None

    def prepare(self, case: Case) -> None:
        if not case.nbytes:
            raise Unsupported("there is nothing to copy")
        source, target = (np.full(case.nbytes, 1, np.uint8) for _ in range(2))
        self._call = partial(np.copyto, target, source)
        sample(self._call, self._comm.barrier, AGAIN)

    def wrong(self, case: Case, salt: int) -> int:
        return 0

    def iterations(self, pace: Pace) -> int:
        assert self._call is not None
        call = self._call

        def attempt(iterations: int) -> float:
            return float(self._comm.allreduce(np.array(elapsed(call, self._comm.barrier, iterations)), "max"))

        return pace.iterations(attempt)

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        assert self._call is not None
        sample(self._call, self._comm.barrier, AGAIN)
        return tuple(self._comm.allgather(sample(self._call, self._comm.barrier, iterations)))

    def finish(self) -> None:
        self._call = None
