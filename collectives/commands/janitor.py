"""Cleans up after a launcher that was killed: kills the ranks' process groups and removes the launcher's directory.

Invariant: this script acts exactly if its standard input ends without the word "done", because the launcher has then
died without cleaning up. It runs in a process and a session of its own, and imports nothing of this package. Linux
kills the ranks when the launcher dies (see `child`). This script kills the processes that the ranks started, and
removes the directory, which contains the job's secret.

    python -I -S janitor.py DIRECTORY      standard input: one process group id per line
"""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable


def sweep(groups: Iterable[int], directory: str) -> None:
    """Kills the processes that are left in the process groups `groups`, and removes `directory` with its files.

    May be called again.
    """
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


def _main() -> None:
    # A signal to all processes must not end this process, which cleans up.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    lines = sys.stdin.read().split()
    if "done" not in lines:
        sweep(map(int, lines), sys.argv[1])


if __name__ == "__main__":
    _main()
