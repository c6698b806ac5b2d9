"""Tests of the suite in processes of their own, for one backend and number of ranks.

Invariant: what a test leaves behind ends with its process, and none runs for longer than `SECONDS`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

HOME: Final = Path(__file__).parents[4]
SECONDS: Final = 120  # for one test, on a loaded machine


class Outcome(NamedTuple):
    """`what`: "passed", "skipped" or "failed"; `why`: torch's reason, or the tracebacks of all ranks."""

    what: str
    why: str
    seconds: float

    @property
    def error(self) -> str:
        """The line of the first traceback that says most."""
        lines = [line.strip() for line in self.why.splitlines()]
        reported = [
            line for line in lines if "exited with error code" not in line and not line.startswith(("raise ", "File "))
        ]
        errors = [line for line in reported if "Error" in line.split(":", maxsplit=1)[0] or "timed out" in line]
        return (errors or reported or ["no message"])[0]


def outcomes(
    backend: str,
    size: int,
    names: Iterable[str] = (),
    *,
    gpu: bool = False,
    tell: Callable[[str, Outcome], None] = lambda name, outcome: None,
) -> dict[str, Outcome]:
    """By name, of these tests, or of all. RuntimeError if the process that runs them fails itself."""
    settings = {
        **{k: v for k, v in os.environ.items() if not k.startswith("COLLECTIVES_")},
        "BACKEND": backend,
        "WORLD_SIZE": str(size),
        "DEVICE": "cuda" if gpu else "cpu",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS),
        "COLLECTIVES_CALIBRATE": "off",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HOME), *filter(None, sys.path)]),
    }
    command = [sys.executable, "-m", f"{__package__}.one", *names]
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, env=settings, cwd=HOME, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    name, *rest = json.loads(line)
                    found[name] = Outcome(*rest)
                    tell(name, found[name])
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # the ranks, too
                raise
        if process.returncode != 0:
            errors.seek(0)
            raise RuntimeError(f"the tests' process ended with {process.returncode}:\n{errors.read()[-4000:]}")
    return found
