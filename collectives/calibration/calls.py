"""Makes functions that call a collective with a certain algorithm on certain arrays, for repeated timing.

Invariant: arrays are ordinary NumPy arrays, whose pages are allocated before anything is timed. In a real program, a
rank has just computed its input, so only the cache of this rank holds the input, in modified lines. `Arrays.renew`
creates this state before a call is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collectives.arrays.wire import WireName
    from collectives.core.communicator import Communicator

Call: TypeAlias = "Callable[[], Any]"

ITEMSIZE: Final = 4  # bytes of a float32
_RENEWED: Final = 8 << 20  # bytes


class Arrays:
    """This rank's input and output array for the calls of collectives that a calibration times.

    `most`: the size in bytes of the largest call. `size`: the number of ranks.
    """

    def __init__(self, most: int, size: int) -> None:
        elements = max(size, most // ITEMSIZE)
        self._inp, self._out = np.zeros(elements, np.float32), np.zeros(elements, np.float32)
        self._inp.fill(0)  # np.zeros alone allocates no pages
        self._out.fill(0)

    def renew(self, nbytes: int) -> Call:
        """Returns a function that writes to the first `nbytes` bytes of the input, but at most to 8 MiB.

        So the input is in the processor's caches when the next call begins, as if a program had just computed it.
        """
        return partial(self._inp[: min(nbytes, _RENEWED) // ITEMSIZE].fill, 1)

    def call(
        self, comm: Communicator, collective: str, algorithm: str, nbytes: int, wire: WireName | None = None
    ) -> Call:
        """Returns a function that calls `collective` with `algorithm`, on float32 arrays of about `nbytes` bytes.

        `nbytes` is the size of the input or output, whichever is larger. If the collective divides data among ranks,
        each rank's part is equally large and has at least one element. `wire`: the wire format, for collectives that
        have them. Raises ValueError for an unknown collective.
        """
        part = max(1, nbytes // ITEMSIZE // comm.size)
        whole = max(1, nbytes // ITEMSIZE)
        inp, out, size = self._inp, self._out, comm.size
        parts = inp[: part * size].reshape(size, part)
        form: dict[str, Any] = {} if wire is None else {"wire": wire}
        match collective:
            case "allreduce":
                return partial(comm.allreduce, inp[:whole], out=out[:whole], algorithm=algorithm, **form)
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
                return partial(comm.reduce_scatter, parts, out=out[:part].reshape(1, part), algorithm=algorithm, **form)
            case "allgather":
                return partial(
                    comm.allgather, inp[:part], out=out[: part * size].reshape(size, part), algorithm=algorithm, **form
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
