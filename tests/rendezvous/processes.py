"""Child processes for tests.

Invariant: a child sees the packages that this process sees; whoever starts one reaps it.
"""

from __future__ import annotations

import os
import subprocess
import sys


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs `code`, with pipes."""
    command = [sys.executable, "-c", code, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
