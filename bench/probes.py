"""Measures the library's memory: the functions that ranks run, each function in a job of its own.

Invariant: memory that must not count (arrays, loaded code, one-time costs of the first call) is allocated before a
function reads the process's memory for the first time.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import collectives
from collectives.algorithms import registry
from collectives.bench.cases import Case
from collectives.bench.data import Data
from collectives.bench.exits import FAILED
from collectives.bench.hosts import own_memory
from collectives.schedule.form import Recv, Reduce, Send


class CannotReset(Exception):
    """The kernel does not let this process reset the peak of its resident memory (VmHWM)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of measuring memory: `ranks` lists the bytes measured on each rank, by rank.

    `wrong` is the number of wrong elements in the results of collectives, on all ranks together.
    """

    ranks: list[int]
    wrong: int = 0


class Peak:
    """Measures the rise of resident memory: the peak since this object was created, minus the value at that time."""

    def __init__(self) -> None:
        """Reset the kernel's record of the peak. Raises CannotReset if the kernel keeps the old one."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError as error:
            raise CannotReset(f"the peak of resident memory cannot be reset here: {error}") from error
        self._before: Final = own_memory("VmRSS")

    def rise(self) -> int:
        return own_memory("VmHWM") - self._before


def allreduce(nbytes: int, buffers: str, algorithm: str, timeout: float) -> Found:
    """Measure the memory that the first allreduce of a communicator needs, on an array of `nbytes` bytes, in place.

    `buffers` is "plain" for a NumPy array, "shared" for an array from `comm.empty`. `timeout` is in seconds.
    """
    with collectives.init(timeout=timeout) as comm:
        count = max(1, nbytes // 4)
        x = comm.empty(count, "float32") if buffers == "shared" else np.empty(count, np.float32)
        case = Case("allreduce", "float32", 4, "sum", -1, algorithm, comm.size, count)
        data = Data(case, x.dtype, comm.rank, 1)
        data.fill(x)
        comm.barrier()
        peak = Peak()
        comm.allreduce(x, out=x, algorithm=algorithm)
        rise = peak.rise()
        return _together(comm, rise, data.wrong(x))


def communicator(timeout: float) -> Found:
    """Measure the peak memory of a communicator that connects to all ranks and runs an allreduce.

    `timeout` is in seconds.
    """
    x = np.ones(1 << 18, np.float32)
    with collectives.init("memory://alone", rank=0, size=1, name="alone") as alone:
        alone.allreduce(x, out=x)  # loads the code
    peak = Peak()
    with collectives.init(timeout=timeout) as comm:
        comm.alltoall(np.ones(comm.size, np.uint8), algorithm="direct")
        comm.allreduce(x, out=x)
        return _together(comm, peak.rise(), int(np.count_nonzero(x != comm.size)))


def link(timeout: float) -> Found:
    """Measures the memory of an open link without traffic."""
    with collectives.init(timeout=timeout) as comm:
        x = np.ones(comm.size, np.uint8)
        out = np.empty_like(x)
        steps = registry.schedule("barrier", "dissemination", comm.rank, comm.size).steps
        opened: set[int] = set()
        for step in steps:
            match step:
                case Send(peers, _):
                    opened.update(peers)
                case Recv(peer, _):
                    opened.add(peer)
                case Reduce(_, operands, _):
                    opened.update(o for o in operands if isinstance(o, int))
        comm.barrier()
        before = own_memory("VmRSS")
        comm.alltoall(x, out=out, algorithm="direct")
        comm.barrier()
        rise = own_memory("VmRSS") - before
        links = comm.size - 1 - len(opened)
        return _together(comm, math.ceil(max(0, rise) / links), int(np.count_nonzero(out != 1)))


def threads(ranks: int, timeout: float) -> Found:
    """Measure the memory of one process whose threads are the `ranks` ranks of a job. `timeout` is in seconds."""
    wrong = [1] * ranks

    def rank(number: int) -> None:
        with collectives.init("memory://threads", rank=number, size=ranks, name="threads", timeout=timeout) as comm:
            x = np.ones(1 << 12, np.float32)
            comm.alltoall(np.ones(ranks, np.uint8), algorithm="direct")
            comm.allreduce(x, out=x)
            wrong[number] = int(np.count_nonzero(x != ranks))
            comm.barrier()

    running = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return Found([own_memory("VmHWM")], sum(wrong))


def _together(comm: collectives.Communicator, figure: int, wrong: int) -> Found:
    everyones = comm.allgather(np.array([figure, wrong], np.int64))
    return Found(everyones[:, 0].tolist(), int(everyones[:, 1].sum()))


_PROBES: Final[dict[str, Callable[..., Found]]] = {
    "allreduce": allreduce,
    "communicator": communicator,
    "link": link,
    "threads": threads,
}


def main() -> None:
    """The main function of a process that `collectives.bench.memory` has started to measure memory."""
    reported: dict[str, Any] = json.loads(sys.argv[1])
    try:
        found = _PROBES[reported["probe"]](**reported["options"])
    except (collectives.CollectiveError, CannotReset) as error:
        sys.stderr.write(f"collectives bench: {reported['probe']}: {type(error).__name__}: {error}\n")
        sys.exit(FAILED)
    Path(reported["result"]).write_text(json.dumps({"ranks": found.ranks, "wrong": found.wrong}))
