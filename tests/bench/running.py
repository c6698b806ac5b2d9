"""The command as its users run it: in processes of their own, with no launcher's variables around.

The command and its ranks are forked (`tests/warm/parents.py`); `COMMAND` starts Python.

Invariant: what was started has ended when `bench` returns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import collectives
from tests.finished import finished
from tests.warm.parents import python

HOME = Path(collectives.__file__).parents[1]
COMMAND = (sys.executable, "-c", "from collectives.commands.main import main; main(prog_name='collectives')")
LAUNCHERS = (
    "COLLECTIVES_",
    "OMPI_",
    "PMI",
    "SLURM_",
    "TORCHELASTIC_",
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "JOB_",
)


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return {**kept, "PYTHONPATH": str(HOME), "COLUMNS": "200", "COLLECTIVES_CALIBRATE": "off", **more}


def bench(
    *arguments: str, folder: Path | None = None, code: int = 0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`collectives bench ...`, which has to end with that code."""
    return command("bench", *arguments, folder=folder, code=code, env=env)


def command(
    *arguments: str, folder: Path | None = None, code: int | None = 0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`collectives ...`, which has to end with that code, unless it is None."""
    settings = environment() if env is None else env
    done = finished([python(settings), *COMMAND[1:], *arguments], cwd=folder, env=settings)
    assert code in (None, done.returncode), f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def table(output: str) -> list[list[str]]:
    """The fields of the lines that are not comments."""
    return [line.split() for line in output.splitlines() if line.strip() and not line.startswith("#")]
