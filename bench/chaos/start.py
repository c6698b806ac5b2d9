"""Starts the processes that make the runs, and yields what they find.

Invariant: a runner imports from the same places as this process. When the iteration ends no process of it is left.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Final

from collectives.bench.chaos.case import Case, Finding, Unit

TABLE: Final = "collectives.bench.chaos.cases"
_BOOT: Final = (
    "import sys, json, signal; task = json.loads(sys.stdin.read()); sys.path[:] = task['path']; "
    "from collectives.bench.chaos.runner import main; main(task, int(sys.argv[1]))"
)
# Libraries that would start threads as they are imported: a process that forks has one.
_ALONE: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def units(
    cases: Iterable[Case], transports: Sequence[str], *, long: bool, runs: int, seed: int | None, ranks: int, store: str
) -> list[Unit]:
    """Return the runs to make for the kinds of faults `cases`, each with its transport and its random seed.

    If `transports` is empty, each kind of fault is tested over its own transports. `runs` is the number of runs for
    each kind and transport, `ranks` the number of ranks; if 0, each kind of fault has its own number. `long` selects
    more runs. `seed` is for the random choices; if None, each kind of fault has a fixed seed. `store` is the kind of
    the rendezvous store.
    """
    found = []
    for case in cases:
        for transport in transports or case.transports:
            first = zlib.crc32(f"{case.name} {transport}".encode()) % 1_000_000 if seed is None else seed
            for number in range(runs or case.runs[long]):
                found.append(Unit(case.name, transport, first + number, ranks, store))
    return found


def perform(wanted: Sequence[Unit], *, jobs: int = 1, table: str = TABLE) -> Iterator[Finding]:
    """Make the runs with injected faults in `wanted`, `jobs` at a time, and yield each result when its run has ended.

    `table` is the name of the Python module that defines the kinds of faults, in the list CASES. Raises: RuntimeError
    if a process that makes runs fails. Such a failure is an error of the test, not of the library.
    """
    with ExitStack() as opened:
        runners = [_Runner(wanted[number::jobs], table, opened) for number in range(min(jobs, len(wanted)))]
        running = {runner.descriptor: runner for runner in runners}
        while running:
            ready, _, _ = select.select(list(running), [], [])
            for descriptor in ready:
                yield from running[descriptor].read()
                if running[descriptor].over:
                    del running[descriptor]
        for runner in runners:
            if runner.process.wait() != 0:
                raise RuntimeError(f"a runner of chaos ended with {runner.process.returncode}")


class _Runner:
    def __init__(self, wanted: Sequence[Unit], table: str, opened: ExitStack) -> None:
        self.descriptor, writing = os.pipe()
        opened.callback(os.close, self.descriptor)
        self.over = False
        self._unread = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(writing)],
            stdin=subprocess.PIPE,
            pass_fds=[writing],
            env={**os.environ, **_ALONE},
            start_new_session=True,  # Ctrl-C is for this process alone, which ends the runner
        )
        os.close(writing)
        opened.callback(self._end)
        task = {"path": sys.path, "cases": table, "units": [asdict(unit) for unit in wanted]}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task).encode())
        self.process.stdin.close()

    def read(self) -> Iterator[Finding]:
        data = os.read(self.descriptor, 1 << 16)
        self.over = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            found = json.loads(line)
            yield Finding(**{**found, "unit": Unit(**found["unit"])})

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # which lets it remove its hosts and servers
            try:
                self.process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
