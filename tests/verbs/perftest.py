"""perftest, a program that is not ours, between the devices rxe0 and rxe1.

Invariant: whatever happens to one run, neither of its two processes outlives it.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LISTENS = 1.0  # seconds until a server listens, which it does not say
ENDS = 60.0  # seconds for one run, where the processor is emulated


def figures(program: str, *options: str) -> list[float]:
    """The last line of figures that `program` (of perftest) prints, when rxe0 is connected to rxe1."""
    common = [program, "-x", "1", "-F", *options]
    with subprocess.Popen([*common, "-d", "rxe1"], stdout=subprocess.DEVNULL) as server:
        try:
            time.sleep(LISTENS)
            command = [*common, "-d", "rxe0", "127.0.0.1"]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=ENDS)
            assert server.wait(ENDS) == 0, f"the server of {program} ended with status {server.returncode}"
        finally:
            server.kill()
    lines = [line for line in done.stdout.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
    return [float(word) for word in lines[-1].split()]


class Runs:
    """How often perftest has moved data, and what went wrong, if anything did."""

    def __init__(self) -> None:
        self.bandwidths: list[float] = []  # of each run, Gbit/s
        self.problem: Exception | None = None


@contextmanager
def again_and_again() -> Iterator[Runs]:
    """While this is open, perftest writes 6.4 MB over both devices about every second. Raises what went wrong there."""
    runs, over = Runs(), threading.Event()

    def write() -> None:
        try:
            while not over.is_set():
                runs.bandwidths.append(figures("ib_write_bw", "-s", "65536", "-n", "100", "--report_gbits")[3])
        except Exception as error:  # shown by whoever closes this
            runs.problem = error

    thread = threading.Thread(target=write, name="perftest")
    thread.start()
    try:
        yield runs
    finally:
        over.set()
        thread.join()
    if runs.problem:
        raise runs.problem
