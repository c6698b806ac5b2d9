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
    """A rank's program could not be started; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Process:
    """The process of one rank: its number, program, environment, and the cores it may use (None: all).

    `same_addresses`: code and data have the same addresses as in other processes of the program that are started with
    this flag.
    """

    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    cores: frozenset[int] | None = None
    same_addresses: bool = False
    reads_input: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """How a rank ended, `after` seconds: with exit code `code`, or, if that is None, killed by signal `signal`."""

    code: int | None
    signal: int | None
    after: float

    @property
    def failed(self) -> bool:
        return self.code != 0

    @property
    def status(self) -> int:
        """The exit status that a shell would report."""
        return 128 + (self.signal or 0) if self.code is None else self.code

    def __str__(self) -> str:
        if self.code is not None:
            return f"exited with code {self.code}"
        return f"was killed by {_signal_name(self.signal or 0)}"


@dataclass(slots=True)
class Child:
    """A started process, which leads a process group of its own; `end` is None while it runs."""

    process: Process
    popen: subprocess.Popen[bytes]
    started: float
    end: End | None = None

    @classmethod
    def start(cls, process: Process, *, stdout: int, stderr: int) -> Child:
        """Start `process`, with its output to these two descriptors. Raises StartError."""
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
        """The id of the process and of its process group. No other process can get this id before `reap`."""
        return self.popen.pid

    @property
    def loss(self) -> losses.Loss | None:
        """The record of the peer that this rank lost before it ended; None if it lost none."""
        return losses.read(self.process.environment.get(losses.VARIABLE, ""))

    def reap(self) -> None:
        """Wait for the end of the process and release its id."""
        self.popen.wait()

    def poll(self) -> End | None:
        """How the process ended; None if it still runs. It stays a zombie, so that its process id stays in use."""
        status = os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        exited = status.si_code == os.CLD_EXITED
        after = time.monotonic() - self.started
        self.end = End(status.si_status if exited else None, None if exited else status.si_status, after)
        return self.end


def _before_exec(cores: frozenset[int] | None, same_addresses: bool) -> Callable[[], None]:
    """The steps of a child between fork and exec: die with the launcher, leave the terminal, bind to its cores.

    The child gets a process group of its own and no controlling terminal. So it may read the launcher's terminal, and
    Ctrl-C reaches it through the launcher only. The child stays in the launcher's session, because Linux divides
    processor time between sessions first (autogroup), and a rank yields its core to ranks of its own session only. No
    other thread of this process runs Python, so the child may run Python here.
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
            addresses.be_the_same()

    return before_exec


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
