"""Programs that tests run to their end.

Invariant: the deadline is the test's own; a program that exceeds it is asked to end, and so ends what it has started.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

GRACE: Final = 10.0  # seconds for a program to end its processes, before it is killed


def finished(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What became of `command`; both its streams are captured, and shown where the test's time runs out."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=cwd
    ) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            process.terminate()
            try:
                print(*process.communicate(timeout=GRACE), sep="\n")
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
