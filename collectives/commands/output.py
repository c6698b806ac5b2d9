"""Combines the output of many ranks on one terminal or in one file.

Invariant: each line comes from one stream (standard output or error) of one rank, and its bytes are unchanged. There
are two exceptions. A line longer than `LONG` bytes is written in pieces, and a newline ends a piece if another rank
writes before the next piece. On a terminal, a carriage return would overwrite the mark with the rank's number, so only
the text after the last carriage return is kept. Nothing here blocks. Memory is bounded: streams are not read while
their sink, the queue in front of the terminal or file, is full.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import time
from typing import Final

LONG: Final = 1 << 16  # bytes of an unfinished line that are held back
FULL: Final = 1 << 18  # bytes that wait in a sink: from here on its streams are not read
READ: Final = 1 << 16
DRAIN: Final = 1 << 20
WRITE: Final = 4096  # POSIX: a pipe that polls as writable takes this many bytes (PIPE_BUF) without blocking
REDRAW: Final = 0.1  # seconds after which an unfinished line is shown on a terminal, and between its updates

_ERASE: Final = b"\r\x1b[K"
_RESET: Final = b"\x1b[0m"
_ESCAPE: Final = re.compile(rb"\x1b\[[0-9;]*m")
_COLOURS: Final = (36, 33, 32, 35, 34, 31)  # cyan, yellow, green, magenta, blue, red: distinguishable side by side


def colourful(fd: int) -> bool:
    """Whether to write colours to `fd`: yes if it is a terminal, and the user has not disabled them (no-color.org)."""
    return os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def mark(rank: int, width: int, colour: bool) -> bytes:
    """Returns the prefix of each output line of `rank`, such as "[3] ", padded to align with numbers of `width` digits.

    `colour`: whether the prefix is coloured.
    """
    text = b"[%*d]" % (width, rank)
    return b"\x1b[%dm%s%s " % (_COLOURS[rank % len(_COLOURS)], text, _RESET) if colour else text + b" "


class Sink:
    """A queue of bytes to write to one file descriptor, such as standard output, without ever blocking.

    The descriptor stays in blocking mode, because other processes may use it too.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.terminal = os.isatty(fd)
        self.broken = False
        self.unfinished: object = None  # the writer of the queue's last line, if that line has no end yet
        self.live: object = None  # the writer whose unfinished line is shown until other output comes
        self._shown = False
        self._queue = bytearray()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) >= FULL

    @property
    def waiting(self) -> bool:
        return bool(self._queue) and not self.broken

    def put(self, writer: object, data: bytes) -> None:
        """Adds `data`, output of `writer`, to the queue.

        If the last queued line is unfinished and from another writer, adds a line break first.
        """
        if self.broken:
            return
        if self._shown:
            self._queue += _ERASE
            self._shown = False
        if self.unfinished is not None and self.unfinished is not writer:
            self._queue += b"\n"
        self._queue += data
        self.unfinished = None if data.endswith(b"\n") else writer

    def show(self, writer: object, data: bytes) -> None:
        """Shows `data`, an unfinished line, on the terminal until the next call of `show` or `put` replaces it."""
        self._queue += _ERASE + data
        self.live, self._shown = writer, True

    @property
    def showing(self) -> bool:
        return self._shown

    def write(self) -> None:
        """Writes as much of the queue as the descriptor accepts without blocking; called when it accepts data."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        for _ in range(32):
            try:
                written = os.write(self.fd, self._queue[:WRITE])
            except BlockingIOError:  # another process made the descriptor non-blocking
                return
            except OSError:  # the reader has gone
                self.broken = True
                self._queue.clear()
                return
            del self._queue[:written]
            if not self._queue or not poll.poll(0):
                return


class Stream:
    """Copies one rank's standard output or error from a pipe to `sink`, line by line.

    `fd`: the non-blocking read end of the pipe, which this object closes at the end. `prefix` is written before each
    line, unless it is empty.
    """

    def __init__(self, fd: int, sink: Sink, prefix: bytes) -> None:
        self.fd = fd
        self.sink = sink
        self.closed = False
        self._prefix = prefix
        self._held = bytearray()
        self._since = 0.0
        self._drawn = b""

    def read(self) -> None:
        """Reads what the rank has written to the pipe so far, and copies its whole lines.

        At end of file, copies an unfinished line too, and closes the pipe.
        """
        try:
            data = os.read(self.fd, READ)
        except BlockingIOError:
            return
        if data:
            self._feed(data)
        else:
            self.close()

    def drain(self) -> None:
        """Copies what is left in the pipe, then closes it, even if a process still has the write end open."""
        if self.closed:
            return
        for _ in range(DRAIN // READ):  # more than pipes hold; the other end might be writing without end
            try:
                data = os.read(self.fd, READ)
            except BlockingIOError:
                break
            if not data:
                break
            self._feed(data)
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        os.close(self.fd)
        if self._held:
            self._emit(bytes(self._held) + (b"\n" if self._prefix else b""))
            self._held.clear()
        elif self._prefix and self.sink.unfinished is self:
            self.sink.put(self, b"\n")
        self._let_go()

    @property
    def due(self) -> float | None:
        """When `tick` will show an unfinished line, in seconds on the monotonic clock; None if there is none."""
        if not self.sink.terminal or not self._held or self.sink.unfinished is not None:
            return None
        if self.sink.live not in (None, self) or self.sink.full:
            return None
        if self.sink.showing and self._drawn == self._held:
            return None
        return self._since + REDRAW

    def tick(self, now: float) -> None:
        """Shows on a terminal a line that is unfinished for `REDRAW` seconds, such as a question or a progress bar.

        `now`: the time on the monotonic clock.
        """
        if (due := self.due) is None or due > now:
            return
        width = shutil.get_terminal_size().columns or 80  # a terminal that does not know its size says 0
        room = width - len(_ESCAPE.sub(b"", self._prefix)) - 1
        text = self._held.rstrip(b"\r").decode(errors="replace")[: max(room, 0)]
        self.sink.show(self, self._prefix + text.encode())
        self._drawn, self._since = bytes(self._held), now

    def _feed(self, data: bytes) -> None:
        if not self._held:
            self._since = time.monotonic()
        end = data.rfind(b"\n") + 1
        if end:
            self._emit(bytes(self._held) + data[:end])
            self._held[:] = data[end:]
            self._since = time.monotonic()
            self._let_go()
        else:
            self._held += data
        if self.sink.terminal and b"\r" in self._held:
            self._held[:] = _visible(bytes(self._held))
        if len(self._held) > LONG:
            self._emit(bytes(self._held))
            self._held.clear()

    def _emit(self, data: bytes) -> None:
        if self.sink.terminal and b"\r" in data:
            data = b"\n".join(_visible(line) for line in data.split(b"\n"))
        body = data[:-1].replace(b"\n", b"\n" + self._prefix) + data[-1:]
        self.sink.put(self, body if self.sink.unfinished is self else self._prefix + body)

    def _let_go(self) -> None:
        if self.sink.live is self:
            self.sink.live = None


class Console:
    """The launcher's standard output and standard error, with its own messages and the ranks' output.

    If both are the same file, they share one queue, so that lines do not mix.
    """

    def __init__(self) -> None:
        out, error = (stream.fileno() if stream else _nowhere() for stream in (sys.__stdout__, sys.__stderr__))
        first = Sink(out)
        self.sinks = (first, first if os.path.samestat(os.fstat(out), os.fstat(error)) else Sink(error))

    def say(self, text: str) -> None:
        head = b"\x1b[1mcollectives:\x1b[0m " if colourful(self.sinks[1].fd) else b"collectives: "
        self.sinks[1].put(self, head + text.encode() + b"\n")

    @property
    def waiting(self) -> bool:
        return any(sink.waiting for sink in self.sinks)

    @property
    def queued(self) -> int:
        return sum(sink.queued for sink in self.sinks)


def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _visible(line: bytes) -> bytes:
    """What a terminal still shows of `line`: the text after its last carriage return, except one at the very end."""
    body = line.rstrip(b"\r")
    kept = body[body.rfind(b"\r") + 1 :]
    return kept + line[len(body) :][:1]
