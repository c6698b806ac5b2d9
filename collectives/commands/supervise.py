"""Runs a job's processes to their end: starts them, forwards their output and signals, and stops them together.

Invariant: when `supervise` returns or raises, no process of the ranks' process groups is left. If this process is
killed, the kernel kills the ranks (PR_SET_PDEATHSIG), and the janitor, a separate process, kills the processes that
ranks started. Ranks are reaped only at the very end, so that no signal of the launcher can reach an unrelated process
with a reused id. One thread runs one loop, in which only `poll` blocks.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final

from collectives.commands import janitor
from collectives.commands.causes import Failures
from collectives.commands.child import Child, End, Process
from collectives.commands.endings import Endings
from collectives.commands.output import Console, Stream, colourful, mark

FORWARDED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
REPEATED: Final = 0.5  # seconds within which a second ending signal is the same request: timeout(1) sends two
UNREAD: Final = 1.0  # seconds for which output is offered to a reader that does not read, after a request to stop
TERMINATION: Final = 3.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job of several ranks ended.

    `status`: 0, or the exit status of the first rank that failed. `ended_by`: the first signal that asked the launcher
    to end the job; None without one.
    """

    status: int
    ended_by: signal.Signals | None


def supervise(processes: Sequence[Process], directory: str, *, prefix: bool, grace: float) -> Outcome:
    """Starts the processes of a job, one for each rank, waits until all have ended, and returns how the job ended.

    The job's exit status is 0, or the exit status of the first rank that failed (128 + n for signal n). After a failure
    the other ranks have `grace` seconds to end by themselves. Then they get SIGTERM, and SIGKILL `TERMINATION` seconds
    later. SIGINT, SIGTERM, SIGHUP and SIGQUIT (`ENDING`), and the signals in `FORWARDED`, are sent on to every rank's
    process group. A second signal of `ENDING` kills the ranks. `directory`, for temporary files, is removed at the end.
    `prefix`: whether each line of output begins with its rank.

    Call it from the main thread. Raises StartError if a program cannot be started.
    """
    return _Supervisor(processes, directory, prefix, grace).run()


@dataclass(slots=True)
class _Deadline:
    """The next action on the remaining ranks, and its time."""

    at: float
    signal: signal.Signals


class _Supervisor:
    """The state of one job; `run` is its only public method."""

    def __init__(self, processes: Sequence[Process], directory: str, prefix: bool, grace: float) -> None:
        self._processes = processes
        self._directory = directory
        self._prefix = prefix
        self._grace = grace
        self._console = Console()
        self._ranks: list[Child] = []
        self._streams: list[Stream] = []
        self._deadline: _Deadline | None = None
        self._endings = Endings()
        self._failures = Failures()
        self._waiting = False  # whether a rank has failed, and the others have `grace` seconds
        self._first: End | None = None
        self._asked = 0.0  # when the last ending signal came
        self._ended_by: signal.Signals | None = None  # the first ending signal

    def run(self) -> Outcome:
        with contextlib.ExitStack() as stack:
            wakeups = stack.enter_context(_signals())
            watch = stack.enter_context(_watched(self._directory))
            stack.callback(self._endings.close)
            stack.callback(self._sweep)
            for process in self._processes:
                self._start(process, watch)
            while self._alive:
                self._turn(wakeups)
            self._stop_leftovers()
            self._report_others()
            self._finish_writing(wakeups)
        return Outcome(self._first.status if self._first else 0, self._ended_by)

    def _finish_writing(self, wakeups: socket.socket) -> None:
        """Write the queued output; after a request to stop, give up if nothing can be written for `UNREAD` seconds."""
        asked = self._asked
        while self._console.waiting and self._asked == asked:
            before = self._console.queued
            self._turn(wakeups, time.monotonic() + UNREAD if asked else None)
            if asked and self._console.queued == before:
                break

    @property
    def _alive(self) -> list[Child]:
        return [rank for rank in self._ranks if rank.end is None]

    def _start(self, process: Process, watch: IO[bytes]) -> None:
        ends = [os.pipe() for _ in self._console.sinks]
        try:
            child = Child.start(process, stdout=ends[0][1], stderr=ends[1][1])
        except BaseException:
            for read, _ in ends:
                os.close(read)
            raise
        finally:
            for _, write in ends:
                os.close(write)
        self._ranks.append(child)
        self._endings.watch(child)
        _tell(watch, b"%d\n" % child.pid)
        width = len(str(max(p.rank for p in self._processes)))
        for (read, _), sink in zip(ends, self._console.sinks, strict=True):
            os.set_blocking(read, False)
            prefix = mark(process.rank, width, colourful(sink.fd)) if self._prefix else b""
            self._streams.append(Stream(read, sink, prefix))

    def _turn(self, wakeups: socket.socket, until: float | None = None) -> None:
        """Wait for something to happen, and deal with it."""
        poll = select.poll()
        poll.register(wakeups, select.POLLIN)
        readers = {s.fd: s for s in self._streams if not s.closed and not s.sink.full}
        writers = {s.fd: s for s in self._console.sinks if s.waiting}
        for fd in readers:
            poll.register(fd, select.POLLIN)
        for fd in writers:
            poll.register(fd, select.POLLOUT)
        ready = [fd for fd, _ in poll.poll(self._patience(until))]
        for fd in ready:
            if fd in writers:
                writers[fd].write()
            elif fd in readers:
                readers[fd].read()
            elif fd == wakeups.fileno():
                for number in wakeups.recv(4096):
                    self._signalled(number)
                self._collect()  # after any signal: a flood of others may have displaced SIGCHLD
        now = time.monotonic()
        for stream in readers.values():
            stream.tick(now)
        for stream in self._streams:
            if stream.sink.broken:
                stream.close()  # the ranks notice by SIGPIPE, as without a launcher
        if self._deadline and now >= self._deadline.at:
            self._escalate()

    def _patience(self, until: float | None) -> float | None:
        """Milliseconds that `poll` may wait."""
        times = [due for stream in self._streams if not stream.closed and (due := stream.due) is not None]
        if self._deadline:
            times.append(self._deadline.at)
        if until is not None:
            times.append(until)
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _signalled(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._send(signal.SIGCONT)
        elif number in ENDING:
            self._asked_to_end(signal.Signals(number))
        elif number in FORWARDED:
            self._send(signal.Signals(number))

    def _asked_to_end(self, number: signal.Signals) -> None:
        self._blame(final=True)
        before, self._asked = self._asked, time.monotonic()
        self._ended_by = self._ended_by or number
        left = self._alive
        if not before:
            if left:
                self._console.say(f"{number.name} sent to {_these(left)}; repeat it to kill")
            self._send(number)
        elif self._asked - before < REPEATED:
            self._asked = before
        elif left:
            self._console.say(f"{number.name} again: killing {_these(left)}")
            self._send(signal.SIGKILL)

    def _collect(self) -> None:
        """Find which ranks have ended; after the first failure, start the grace period of the others."""
        for child in self._endings.take():
            if child.end is not None and child.end.failed:
                self._failures.add(child)
        self._blame(final=not self._alive)
        if not self._failures.any or self._waiting:
            return
        self._waiting = True
        if left := self._alive:
            why = "" if self._first else f"{_these(self._failures.after_a_loss)} lost a peer; "
            self._console.say(f"{why}waiting up to {self._grace:g} s for {_these(left)} to end")
            self._deadline = _Deadline(time.monotonic() + self._grace, signal.SIGTERM)

    def _blame(self, final: bool) -> None:
        """Report which rank failed first, once that is known. `final`: report now, as no more will become known."""
        if self._first is not None or (rank := self._failures.cause(final)) is None or rank.end is None:
            return
        self._first = rank.end
        text = f"rank {rank.process.rank} (process {rank.pid}) {rank.end} after {rank.end.after:.1f} s"
        if loss := rank.loss:
            text += f", having lost a peer: {loss.text}"
        if rank.end.signal == signal.SIGKILL and not self._asked:
            text += "; where memory runs out, the kernel does this (see dmesg)"
        self._console.say(text)

    def _escalate(self) -> None:
        assert self._deadline is not None
        sending = self._deadline.signal
        self._blame(final=True)  # before the launcher's own signals end ranks
        if left := self._alive:
            self._console.say(f"{_these(left)} still running: sending {sending.name}")
            self._send(sending)
        self._deadline = None
        if sending != signal.SIGKILL:
            self._deadline = _Deadline(time.monotonic() + TERMINATION, signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for rank in self._alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, number)

    def _stop_leftovers(self) -> None:
        """After the ranks have ended, kill the processes that they started, and read the rest of the output."""
        janitor.sweep([rank.pid for rank in self._ranks], self._directory)
        for stream in self._streams:
            stream.drain()

    def _report_others(self) -> None:
        """Print the failures after the first: one line for each exit status or signal, with the ranks that it ended."""
        ways: dict[str, list[Child]] = {}
        for rank in self._ranks:
            if rank.end is not None and rank.end.failed and rank.end is not self._first:
                ways.setdefault(str(rank.end), []).append(rank)
        for way, ranks in ways.items():
            self._console.say(f"{_these(ranks)} {way if len(ranks) == 1 else way.replace('was ', 'were ', 1)}")

    def _sweep(self) -> None:
        """Kill the processes that are left, reap the ranks, and close the streams; runs after an error too."""
        janitor.sweep([rank.pid for rank in self._ranks], self._directory)
        for rank in self._ranks:
            rank.reap()
        for stream in self._streams:
            stream.close()


def _these(ranks: Sequence[Child]) -> str:
    numbers = sorted(rank.process.rank for rank in ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    return f"ranks {', '.join(map(str, numbers))}"


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yields a socket from which the numbers of arriving signals are read; signals ignored before stay ignored."""

    def nothing(number: int, frame: FrameType | None) -> None:
        """Does nothing when a signal comes, because Python itself writes the signal's number to the wake-up socket."""

    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    wanted = [s for s in (*FORWARDED, signal.SIGTSTP) if signal.getsignal(s) != signal.SIG_IGN]
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    handlers = {s: signal.signal(s, nothing) for s in (*wanted, signal.SIGCHLD)}
    try:
        yield receiver
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        receiver.close()
        sender.close()


@contextlib.contextmanager
def _watched(directory: str) -> Iterator[IO[bytes]]:
    """Yields the standard input of a janitor, a process that cleans up if this process is killed.

    The janitor reads the numbers of process groups, one per line, and "done" at the end.
    """
    command = [sys.executable, "-I", "-S", str(Path(janitor.__file__)), directory]
    process = subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        assert process.stdin is not None
        try:
            yield process.stdin
        finally:
            _tell(process.stdin, b"done\n")


def _tell(watch: IO[bytes], line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the janitor was killed: then only this process cleans up
        watch.write(line)
