"""Ranks that outnumber cores: how they give way to each other, seen from the kernel's count of their switches."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.launched import launched

_ON_TWO_CORES = """
import json, os, resource, subprocess, sys, time
import numpy as np
import collectives

cores = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, cores)


def sleeps():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

"""

_COMPUTES_BETWEEN_CALLS = """
TURNS, CALLS = 30, 50


def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


with collectives.init() as comm:
    x = np.ones(2, np.float32)
    out = np.empty_like(x)
    slept = []
    for _ in range(TURNS):
        comm.barrier()
        if comm.rank < 2:
            work(0.004)
        comm.barrier()  # which waits for these two
        before = sleeps()
        for _ in range(CALLS):
            comm.barrier()
            comm.allreduce(x, out=out)
        slept.append((sleeps() - before) / CALLS)
    print(json.dumps(slept))
"""


_BESIDE_A_BUSY_PROGRAM = """
TURNS, CALLS = 30, 200


def core():
    with open("/proc/thread-self/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[36])


with collectives.init() as comm:
    stranger = None
    if comm.rank == 0:
        os.sched_setaffinity(0, cores[:1])
        stranger = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(0, cores)
    x = np.ones(2, np.float32)
    out = np.empty_like(x)
    slept = []
    beside = []
    for _ in range(TURNS):
        before = sleeps()
        for _ in range(CALLS):
            comm.allreduce(x, out=out)
        slept.append((sleeps() - before) / CALLS)
        beside.append(core() == cores[0])
    if stranger is not None:
        stranger.kill()
        stranger.wait()
    print(json.dumps([slept, beside]))
"""


def _typical(slept: list[float]) -> float:
    """Of the later turns, since ranks start at different times; a stranger may have had a core in one or the other."""
    return sorted(slept[10:])[10]


def test_ranks_do_not_sleep_because_some_of_them_compute_between_calls(tmp_path: Path) -> None:
    """A rank whose core another one computes on once took that for a stranger, and slept in every call after."""
    script = tmp_path / "computes.py"
    script.write_text(_ON_TWO_CORES + _COMPUTES_BETWEEN_CALLS)
    done = launched(8, script).succeeded()
    typical = [_typical(json.loads(lines[0])) for lines in done.lines.values()]
    assert max(typical) < 1, typical


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores, one of which a stranger does not have")
def test_ranks_leave_a_core_to_a_busy_program_and_do_not_sleep_for_it(tmp_path: Path) -> None:
    """They once slept in most calls, also on the other core."""
    script = tmp_path / "beside.py"
    script.write_text(_ON_TWO_CORES + _BESIDE_A_BUSY_PROGRAM)
    done = launched(4, script).succeeded()
    slept, beside = zip(*(json.loads(lines[0]) for lines in done.lines.values()), strict=True)
    typical = [_typical(one) for one in slept]
    assert max(typical) < 1, typical
    assert all(sum(one[10:]) < 10 for one in beside), beside
