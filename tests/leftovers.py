"""Processes that tests have started, found by a mark in their environment, and ended when their test is over.

Invariant: whatever a test starts inherits the mark, also through launchers and shells, so nothing has to be registered:
a test that fails, or runs out of time, leaves nothing behind, and neither does a test run that is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

NAME = "PYCOLLECTIVES_TESTS"
GRACE = 3.0  # seconds for a process that is ending by itself
_OF_PYTHON = (
    b"multiprocessing.resource_tracker",
    b"multiprocessing.forkserver",
)  # which serve until the interpreter ends

# Waits for the end of the test run, however it comes, and ends what has its mark.
_JANITOR = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
while os.read(0, 1):
    pass
mark = sys.argv[1].encode()
for name in filter(str.isdecimal, os.listdir("/proc")):
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read().split(b"\\0") and int(name) != os.getpid():
                os.kill(int(name), signal.SIGKILL)
    except OSError:
        pass
"""


class Marked:
    """All processes that this one starts from now on."""

    def __init__(self) -> None:
        os.environ[NAME] = uuid.uuid4().hex
        self._mark = f"{NAME}={os.environ[NAME]}"
        self._known: dict[int, bool] = {}  # by process: whether it is ours
        self._kept: set[int] = set()
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _JANITOR, self._mark], stdin=subprocess.PIPE, start_new_session=True
        )
        self.keep(self._janitor.pid)

    def keep(self, process: int) -> None:
        """This one is of the whole test run: its fixture ends it."""
        self._kept.add(process)

    def running(self) -> set[int]:
        """Their process ids; those that have ended and nobody has waited for do not count."""
        now = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._known = {process: ours for process, ours in self._known.items() if process in now}
        for process in now - self._known.keys():
            self._known[process] = self._is_ours(process)
        return {
            p for p, ours in self._known.items() if ours and p not in self._kept and _state(p) not in ("Z", "X", "")
        }

    def end(self, processes: Iterable[int]) -> list[str]:
        """Kill those that do not end by themselves in a moment, and all that they start meanwhile; what they ran."""
        wanted, reported = set(processes), []
        until = time.monotonic() + GRACE
        while (left := self.running() & wanted) and time.monotonic() < until:
            time.sleep(0.02)  # processes that are no children of ours tell nobody when they end
        for process in left:
            reported.append(f"{process}: {_command(process)[:200].decode(errors='replace')}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)  # children of ours; the others are waited for by whom they have been left to
            while _state(process) not in ("Z", "X", ""):
                time.sleep(0.001)
        return reported

    def _is_ours(self, process: int) -> bool:
        if process == os.getpid() or any(name in _command(process) for name in _OF_PYTHON):
            return False
        try:
            environment = Path(f"/proc/{process}/environ").read_bytes()
            parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return False
        return self._mark.encode() in environment.split(b"\0") or int(parent) == os.getpid()


@cache
def marked() -> Marked:
    """The one of this test run."""
    return Marked()


def inherit_nothing_ignored() -> None:
    """Children get every signal's usual disposition, as those of a terminal do, whatever this process was started with.

    `nohup`, jobs of a script and many CI runners have SIGINT or SIGHUP ignored, which children would inherit. A handler
    that does nothing also ignores the signal in this process, and is not inherited.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """AssertionError, naming them, for processes that are started inside and still run afterwards; they are ended."""
    before = marked().running()
    try:
        yield
    finally:
        new = marked().running() - before
        left = marked().end(new) if new else []
    assert not left, "left behind, and ended now:\n" + "\n".join(left)


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
