"""Child processes for tests.

Invariant: a child sees the packages that this process sees; whoever starts one reaps it.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.warm import parents


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs `code`, with pipes. It is forked: see `tests/warm/parents.py`."""
    return _piped(parents.python(environment()), "-c", code, *arguments)


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    """The same, but really started: SIGSTOP stops it."""
    return _piped(sys.executable, "-c", code, *arguments)


def _piped(*command: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
