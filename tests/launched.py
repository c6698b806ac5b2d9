"""Scripts run by `collectives run`, as users run them, in processes of their own.

Invariant: every process is waited for, while the test may run, and a child sees the packages that this process sees.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import collectives
from tests.finished import finished
from tests.warm.parents import interpreter, python

_HOME = Path(collectives.__file__).parents[1]
_CHOSEN = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # by the launcher, for its ranks
_LAUNCHER = ("-c", "from collectives.commands.main import main; main(prog_name='collectives')", "run")


class Launched(NamedTuple):
    """What became of a job; `lines` are those of standard output, by rank, in order."""

    returncode: int
    stdout: str
    stderr: str
    lines: dict[int, list[str]]

    def succeeded(self) -> Launched:
        assert self.returncode == 0, f"exit {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self


def launched(
    size: int,
    script: Path | str,
    *arguments: str,
    run: tuple[str, ...] = (),
    warm: tuple[str, ...] = (),
    **environment: str,
) -> Launched:
    """`collectives run -n size *run script *arguments`, to its end. `environment` is set for all ranks.

    Nothing of the surrounding job's environment reaches the ranks; they never calibrate. `warm`: modules that the ranks
    need not import, since they are forked from a process that has (`tests/warm/parents.py`).
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COLLECTIVES_", "OMP_"))}
    settings = {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(_HOME), *sys.path]),
        "COLLECTIVES_CALIBRATE": "off",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **environment,
    }
    before = [interpreter(warm, {**_CHOSEN, **settings})] if warm else []
    command = [python(settings), *_LAUNCHER, "-n", str(size), *run, *before, str(script), *arguments]
    done = finished(command, env=settings)
    lines: dict[int, list[str]] = {rank: [] for rank in range(size)}
    for line in done.stdout.splitlines():
        if found := re.match(r"\[(\d+)\] ?(.*)", line):
            lines[int(found[1])].append(found[2])
    return Launched(done.returncode, done.stdout, done.stderr, lines)
