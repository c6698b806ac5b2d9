"""Programs that keep cores busy, for tests of what is done beside others.

Invariant: they are gone when the context ends, however it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BUSY = "print(flush=True)\nwhile True: pass"


@contextmanager
def busy_programs(count: int | None = None) -> Iterator[list[int]]:
    """So many (one for each core of this process's, unless given), all running; their process ids."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(len(os.sched_getaffinity(0)) if count is None else count):
            started.append(subprocess.Popen([sys.executable, "-c", _BUSY], stdout=subprocess.PIPE))
        for program in started:
            assert program.stdout is not None and program.stdout.readline()
        yield [program.pid for program in started]
    finally:
        for program in started:
            program.kill()
        for program in started:
            with program:
                pass
