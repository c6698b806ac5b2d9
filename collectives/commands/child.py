"""One rank's process: what to start, how it is started, and how it ended."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from collectives.commands import addresses
from collectives.core import losses

_PR_SET_PDEATHSIG: Final = 1


class StartError(Exception):
    """Raised if a rank's program could not be started; the text of the error says why."""


@dataclass(frozen=True, slots=True)
class Process:
    """All that the launcher needs to start one rank's process: its command, environment and settings.

    `cores`: the cores on which it may run; None for all. `same_addresses`: switch address randomisation (ASLR) off.
    `reads_input`: the rank reads the launcher's standard input.
    """

    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    cores: frozenset[int] | None = None
    same_addresses: bool = False
    reads_input: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """How a rank's process ended: with the exit status `code`, or killed by the signal with number `signal`.

    One of `code` and `signal` is None. `after`: seconds from the start to the end of the process.
    """

    code: int | None
    signal: int | None
    after: float

    @property
    def failed(self) -> bool:
        return self.code != 0

    @property
    def status(self) -> int:
        """The exit status that a shell would report for the process."""
        return 128 + (self.signal or 0) if self.code is None else self.code

    def __str__(self) -> str:
        if self.code is not None:
            return f"exited with code {self.code}"
        return f"was killed by {_signal_name(self.signal or 0)}"


@dataclass(slots=True)
class Child:
    """The started process of one rank, which leads a process group of its own. `end` is None while it runs.

    `started`: when it was started, in seconds on the monotonic clock.
    """

    process: Process
    popen: subprocess.Popen[bytes]
    started: float
    end: End | None = None

    @classmethod
    def start(cls, process: Process, *, stdout: int, stderr: int) -> Child:
        """Starts the program of one rank, as `process` describes; returns an object for the started process.

        `stdout`, `stderr`: file descriptors for its output. Raises StartError if the program cannot be started.
        """
        try:
            popen = subprocess.Popen(
                process.command,
                env=process.environment,
                stdin=None if process.reads_input else subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                preexec_fn=_before_exec(process.cores, process.same_addresses),  # noqa: PLW1509 (see there)
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise StartError(f"rank {process.rank} could not be started: {error}") from error
        return cls(process, popen, time.monotonic())

    @property
    def pid(self) -> int:
        """The number (pid) of the process and its process group. No other process can get this number before `reap`."""
        return self.popen.pid

    @property
    def loss(self) -> losses.Loss | None:
        """When this rank first lost a peer, and by which error, read from a file of the rank; None if it lost none."""
        return losses.read(self.process.environment.get(losses.VARIABLE, ""))

    def reap(self) -> None:
        """Wait for the end of the process and release its id."""
        self.popen.wait()

    def poll(self) -> End | None:
        """Returns how the process ended; None if it still runs.

        An ended process stays a zombie until `reap`, so that its number (pid) is not given to another process.
        """
        status = os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        exited = status.si_code == os.CLD_EXITED
        after = time.monotonic() - self.started
        self.end = End(status.si_status if exited else None, None if exited else status.si_status, after)
        return self.end


def _before_exec(cores: frozenset[int] | None, same_addresses: bool) -> Callable[[], None]:
    """Returns the function that a child process runs between fork and exec.

    It asks Linux to kill the child when the launcher dies, and binds the child to `cores`. It gives the child a process
    group of its own and no controlling terminal: so the child may read the launcher's terminal, and Ctrl-C reaches it
    through the launcher only. The child stays in the launcher's session, because Linux (autogroup) first divides
    processor time between sessions, and a rank yields its core only to ranks of the same session. Python code is safe
    after the fork, because no other thread of the launcher runs Python.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    us = os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != us:  # the launcher died before the kernel knew of this request
            os._exit(128 + signal.SIGKILL)
        os.setpgid(0, 0)
        with contextlib.suppress(OSError):  # there is no terminal
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
            os.close(terminal)
        if cores is not None:
            os.sched_setaffinity(0, cores)
        if same_addresses:
            addresses.switch_off_randomisation()

    return before_exec


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
