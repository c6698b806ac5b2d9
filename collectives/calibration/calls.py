"""A collective bound to an algorithm and to memory: one call, ready to be repeated.

Invariant: arrays are in ordinary memory, whose pages exist before anything is timed. In a program, the input of a
reduction has just been computed, so its cache lines are modified in the cache of its rank and in no other cache.
`renew` creates this state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collectives.core.communicator import Communicator

Call: TypeAlias = "Callable[[], Any]"

ITEMSIZE: Final = 4  # bytes of a float32
_RENEWED: Final = 8 << 20  # bytes


class Arrays:
    """A rank's two arrays, large enough for calls of up to `most` bytes among `size` ranks."""

    def __init__(self, most: int, size: int) -> None:
        elements = max(size, most // ITEMSIZE)
        self._inp, self._out = np.zeros(elements, np.float32), np.zeros(elements, np.float32)
        self._inp.fill(0)  # np.zeros alone allocates no pages
        self._out.fill(0)

    def renew(self, nbytes: int) -> Call:
        """Returns a function that writes the input of a call of `nbytes`, or as much of it as a cache may hold."""
        return partial(self._inp[: min(nbytes, _RENEWED) // ITEMSIZE].fill, 1)

    def call(self, comm: Communicator, collective: str, algorithm: str, nbytes: int) -> Call:
        """A call whose larger buffer has about `nbytes` bytes, in equal parts of at least one element for each rank."""
        part = max(1, nbytes // ITEMSIZE // comm.size)
        whole = max(1, nbytes // ITEMSIZE)
        inp, out, size = self._inp, self._out, comm.size
        parts = inp[: part * size].reshape(size, part)
        match collective:
            case "allreduce":
                return partial(comm.allreduce, inp[:whole], out=out[:whole], algorithm=algorithm)
            case "scan":
                return partial(comm.scan, inp[:whole], out=out[:whole], algorithm=algorithm)
            case "exscan":
                return partial(comm.exscan, inp[:whole], out=out[:whole], algorithm=algorithm)
            case "reduce":
                return partial(
                    comm.reduce, inp[:whole], out=out[:whole] if comm.rank == 0 else None, algorithm=algorithm
                )
            case "broadcast":
                return partial(comm.broadcast, inp[:whole], algorithm=algorithm)
            case "reduce_scatter":
                return partial(comm.reduce_scatter, parts, out=out[:part].reshape(1, part), algorithm=algorithm)
            case "allgather":
                return partial(
                    comm.allgather, inp[:part], out=out[: part * size].reshape(size, part), algorithm=algorithm
                )
            case "alltoall":
                return partial(comm.alltoall, parts, out=out[: part * size].reshape(size, part), algorithm=algorithm)
            case "gather":
                return partial(comm.gather, inp[:part], algorithm=algorithm)
            case "scatter":
                return partial(comm.scatter, parts if comm.rank == 0 else None, algorithm=algorithm)
            case "barrier":
                return partial(comm.barrier, algorithm=algorithm)
        raise ValueError(f"there is nothing to call for {collective!r}")
