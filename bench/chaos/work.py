"""What ranks do while something is injected: programs that several cases share.

Invariant: a program that works until the runner stops it ends on all ranks after the same operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import collectives
from collectives.bench.chaos.rank import Rank

STEPS: Final = 8  # operations between two questions whether to stop
_PAUSE: Final = 0.005  # seconds between operations, where ranks do something else most of the time
_MIB: Final = 1 << 20


def steps(rank: Rank, comm: collectives.Communicator) -> Callable[[], Any]:
    """Return a function that runs one collective on `comm` and checks its result.

    `rank.values` selects the collective. The function raises ValueError if the result is wrong.
    """
    elements = rank.values.get("bytes", 8 * _MIB) // 4
    x = np.ones(elements, np.float32)
    out = np.empty_like(x)

    def allreduce() -> None:
        comm.allreduce(x, out=out)
        if out[0] != comm.size or out[-1] != comm.size:
            raise ValueError(f"a wrong result: {out[0]} and {out[-1]}, not {comm.size}")

    def in_background() -> None:
        comm.allreduce_async(x, out=out).wait()

    match rank.values.get("work", "allreduce"):
        case "barrier":
            return comm.barrier
        case "allreduce":
            return allreduce
        case "ring":
            return lambda: comm.allreduce(x, out=out, algorithm="ring")
        case "reduce_scatter":
            return lambda: comm.reduce_scatter(x)
        case "allgather":
            part = x[: elements // comm.size]
            return lambda: comm.allgather(part)
        case "broadcast":
            return lambda: comm.broadcast(out, root=0)
        case "async":
            return in_background
        case "pauses":

            def paused() -> None:
                comm.barrier()
                time.sleep(_PAUSE)

            return paused
    raise ValueError(f"unknown work {rank.values['work']!r}")


def until_told(rank: Rank) -> None:
    """Join the group as one rank, and run collectives until the process that started the ranks tells rank 0 to stop."""
    comm = rank.init()
    step = steps(rank, comm)
    step()
    rank.tell("working")
    asked = np.zeros(1, np.float32)
    while True:
        for _ in range(STEPS):
            step()
        asked[0] = float(comm.rank == 0 and rank.asked() == "stop")
        if comm.broadcast(asked, root=0)[0]:
            break


def until_error(rank: Rank) -> None:
    """Join the group as one rank, and run collectives until one raises an error."""
    comm = rank.init()
    step = steps(rank, comm)
    step()
    rank.tell("working")
    while True:
        step()
