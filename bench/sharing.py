"""How ranks that share cores yield to each other and to other programs, by the kernel's count of context switches.

Invariant: figures, which take a machine on which nothing else runs; no test depends on them.

Measured are two things that have been wrong before. Ranks that outnumber cores, some of which compute between calls,
do not go to sleep in calls: a rank whose core another one computed on once took that for a stranger, and slept ever
after. And ranks beside a busy program leave its core to it and do not sleep for it on the others.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import collectives
from collectives.bench.start import answer, answering
from collectives.core.communicator import Communicator

BAR: Final = 1.0  # sleeps in a call, of the rank that sleeps most
_TURNS: Final = 30
_SETTLED: Final = 10  # turns that do not count: ranks start at different times
_CORES: Final = 2  # that all ranks are put on
_SHARED: Final = 10  # turns, of those that count, in which ranks may have ended on the busy program's core


@dataclass(frozen=True, slots=True)
class Case:
    """`ranks` on two cores, with a busy program on one of them or without."""

    name: str
    ranks: int
    beside: bool


CASES: Final = (
    Case("computing between calls", 8, beside=False),
    Case("beside a busy program", 4, beside=True),
)


@dataclass(frozen=True, slots=True)
class Found:
    """By rank: sleeps per call, in the median turn; and the number of turns that ended on the busy core."""

    slept: list[float]
    on_busy_core: list[int]

    @property
    def well(self) -> bool:
        return max(self.slept) < BAR and all(turns < _SHARED for turns in self.on_busy_core)


def measure(case: Case) -> Found:
    """Raises StartError, OSError; RuntimeError if a rank failed, or there are fewer than two cores."""
    if len(os.sched_getaffinity(0)) < _CORES:
        raise RuntimeError(f"this needs {_CORES} cores")
    return Found(
        **answer("collectives.bench.sharing", {"beside": case.beside}, case.ranks, {"COLLECTIVES_CALIBRATE": "off"})
    )


def run(beside: bool) -> dict[str, Any] | None:
    """Measure, as one rank; on rank 0 the results of all."""
    cores = sorted(os.sched_getaffinity(0))[:_CORES]
    os.sched_setaffinity(0, cores)
    with collectives.init() as comm:
        stranger = _stranger(cores) if beside and comm.rank == 0 else None
        try:
            slept, there = _beside(comm, cores[0]) if beside else (_computing(comm), [False] * _TURNS)
        finally:
            if stranger is not None:
                stranger.kill()
                stranger.wait()
        mine = {"slept": sorted(slept[_SETTLED:])[_SETTLED], "on_busy_core": sum(there[_SETTLED:])}
        reported = [json.loads(text) for text in comm._everyones(json.dumps(mine).encode())]
        comm.barrier()
        return {key: [each[key] for each in reported] for key in mine} if comm.rank == 0 else None


def _stranger(cores: list[int]) -> subprocess.Popen[bytes]:
    os.sched_setaffinity(0, cores[:1])
    started = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # ends with our process group
    os.sched_setaffinity(0, cores)
    return started


def _computing(comm: Communicator, calls: int = 50) -> list[float]:
    """Sleeps in a call, by turn; two ranks compute for 4 ms before each."""
    x = np.ones(2, np.float32)
    out, slept = np.empty_like(x), []
    for _ in range(_TURNS):
        comm.barrier()
        end = time.perf_counter() + (0.004 if comm.rank < 2 else 0.0)
        while time.perf_counter() < end:
            pass
        comm.barrier()  # which waits for these two
        before = _sleeps()
        for _ in range(calls):
            comm.barrier()
            comm.allreduce(x, out=out)
        slept.append((_sleeps() - before) / calls)
    return slept


def _beside(comm: Communicator, busy: int, calls: int = 200) -> tuple[list[float], list[bool]]:
    """Sleeps in a call, and whether the rank was on the busy core at the end, by turn."""
    x = np.ones(2, np.float32)
    out, slept, there = np.empty_like(x), list[float](), list[bool]()
    for _ in range(_TURNS):
        before = _sleeps()
        for _ in range(calls):
            comm.allreduce(x, out=out)
        slept.append((_sleeps() - before) / calls)
        there.append(_core() == busy)
    return slept, there


def _sleeps() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _core() -> int:
    with open("/proc/thread-self/stat", encoding="ascii") as stat:
        return int(stat.read().rpartition(")")[2].split()[36])


def main() -> None:
    """A process that `measure` started as a rank."""
    answering("collectives bench sharing", lambda reported: run(bool(reported["beside"])))
