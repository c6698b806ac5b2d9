"""Runs a worker's checks, one after the other, on every rank of a job, and tells which passed.

Invariant: a rank stops at its first check that fails; the tests of later ones fail as well.
"""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import collectives
from tests.launched import Launched

Check = Callable[[collectives.Communicator], None]


def names(worker: Path) -> list[str]:
    """The checks that a worker has, without importing it, and TensorFlow, here."""
    return re.findall(r"^def check_(\w+)\(", worker.read_text(), re.MULTILINE)


def main(checks: dict[str, object]) -> None:
    """Run what in `checks`, a worker's globals, is called check_*."""
    kept = []  # a communicator that nobody holds is closed, which other ranks might notice first
    with collectives.init(timeout=20.0) as comm:
        for name, check in list(checks.items()):
            if not name.startswith("check_") or not callable(check):
                continue
            began = time.perf_counter()
            try:
                kept.append(comm.dup())
                check(kept[-1])
            except BaseException:
                traceback.print_exc()
                sys.exit(f"rank {comm.rank} failed: {name}")
            print(f"passed {name.removeprefix('check_')} in {time.perf_counter() - began:.1f} s", flush=True)


def passed(job: Launched, name: str) -> None:
    """Fails unless that check passed on every rank."""
    for rank, lines in job.lines.items():
        found = any(line.startswith(f"passed {name} in ") for line in lines)
        assert found, f"{name} did not pass on rank {rank}:\n{job.stderr[-6000:]}"
