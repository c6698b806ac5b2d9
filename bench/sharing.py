"""Measures how ranks share cores with each other and with other programs, by counting sleeps (voluntary switches).

Invariant: the figures mean something only on a machine on which nothing else runs; no test depends on them.

Both cases have more ranks than cores (two). In the first case some ranks compute between calls. The waiting ranks must
not mistake a computing rank for another program, because they would then sleep in calls. In the second case a busy
program occupies a core. The ranks must leave this core to it, and must not sleep in calls on the other core.
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

BAR: Final = 1.0  # sleeps per call, for the rank that sleeps most
_TURNS: Final = 30
_SETTLED: Final = 10  # first rounds, which do not count: ranks start at different times
_CORES: Final = 2  # cores that all ranks share
_SHARED: Final = 10  # a rank must end fewer of the counted rounds than this on the busy program's core


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement with `ranks` ranks on two cores. If `beside`, a busy program also runs on one of the cores."""

    name: str
    ranks: int
    beside: bool


CASES: Final = (
    Case("computing between calls", 8, beside=False),
    Case("beside a busy program", 4, beside=True),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a measurement, with one value for each rank.

    `slept` is how often the rank's thread slept (voluntary context switches) per call, in the median round.
    `on_busy_core` is the number of rounds after which the rank was on the core of the busy program.
    """

    slept: list[float]
    on_busy_core: list[int]

    @property
    def well(self) -> bool:
        return max(self.slept) < BAR and all(turns < _SHARED for turns in self.on_busy_core)


def measure(case: Case) -> Found:
    """Count how often the threads of ranks sleep during collectives, in the situation `case`.

    Raises: StartError or OSError if a process cannot be started; RuntimeError if a rank failed or there is only one
    core.
    """
    if len(os.sched_getaffinity(0)) < _CORES:
        raise RuntimeError(f"this needs {_CORES} cores")
    return Found(
        **answer("collectives.bench.sharing", {"beside": case.beside}, case.ranks, {"COLLECTIVES_CALIBRATE": "off"})
    )


def run(beside: bool) -> dict[str, Any] | None:
    """Count how often this rank's thread sleeps during collectives, as one rank of a job.

    Rank 0 returns the results of all ranks, the other ranks return None. If `beside`, rank 0 starts a busy program on
    one of the cores.
    """
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
    started = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # a signal to our process group ends it, too
    os.sched_setaffinity(0, cores)
    return started


def _computing(comm: Communicator, calls: int = 50) -> list[float]:
    """This rank's sleeps per call, in each round; ranks 0 and 1 compute for 4 ms before the calls of a round."""
    x = np.ones(2, np.float32)
    out, slept = np.empty_like(x), []
    for _ in range(_TURNS):
        comm.barrier()
        end = time.perf_counter() + (0.004 if comm.rank < 2 else 0.0)
        while time.perf_counter() < end:
            pass
        comm.barrier()  # waits for the computing ranks
        before = _sleeps()
        for _ in range(calls):
            comm.barrier()
            comm.allreduce(x, out=out)
        slept.append((_sleeps() - before) / calls)
    return slept


def _beside(comm: Communicator, busy: int, calls: int = 200) -> tuple[list[float], list[bool]]:
    """For each round, this rank's sleeps per call, and whether it ended on core `busy`, where another program runs."""
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
    """The main function of a rank's process. `measure` starts one process for each rank."""
    answering("collectives bench sharing", lambda reported: run(bool(reported["beside"])))
