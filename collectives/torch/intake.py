"""Receive operations without a source (`recv_anysource`): each gets a message of whichever rank sends one.

Invariant: receives of one tag are matched in the order in which they were called, and messages of one rank in the order
in which they were sent. A message goes to the earliest receive that accepts its sender. A message's data is read only
when a receive has been matched with the message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from collectives.core.communicator import Communicator
from collectives.native.errors import OpTimeout
from collectives.torch.meeting import Channel, Early
from collectives.torch.works import Started

_FOREVER: Final = 1e6  # seconds
_SHORTEST, _LONGEST = 0.00005, 0.002  # seconds between two checks for messages
_LOOKS: Final = 0.01  # seconds between two checks for ranks that have begun to send


class FromAny(Early):
    """A receive operation for a message of any rank, or of rank `wanted`; it starts when a message has come.

    `source`: the rank that sends the message; -1 as long as the sender is not known.
    """

    def __init__(self, wanted: int | None, receive: Callable[[Channel], Started], seconds: float) -> None:
        """`wanted`: the source's rank; None for any rank. `receive` starts to receive from the source's channel.

        `seconds`: how long to wait for a message.
        """
        super().__init__(seconds)
        self.wanted: Final = wanted
        self.receive: Final = receive
        self.source = -1 if wanted is None else wanted
        self.lost: Mapping[int, Exception] = {}  # the ranks from which no message can come, and why

    def _expire(self) -> None:
        lost = "".join(f"; rank {rank} can send none: {error}" for rank, error in sorted(self.lost.items()))
        self.fail(OpTimeout(f"no other rank asked for this message within {self._seconds:.1f} s{lost}"))


class Announced:
    """Finds out whether a message of one rank has come, by the header that the rank sends before each message."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Final = channel
        self._next: Started | None = None

    def there(self) -> bool:
        """Returns whether a message has come. Raises the error that ended the connection to the sender."""
        if self._next is None:
            self._next = self._channel.start(lambda comm: announcement(comm, _FOREVER), _FOREVER)
        if not self._next.done():
            return False
        self._next.wait()
        return True

    def take(self, receive: Callable[[Channel], Started]) -> Started:
        self._next = None
        return receive(self._channel)


class Both:
    """Two consecutive operations as one."""

    def __init__(self, first: Started, second: Started) -> None:
        self._first: Final = first
        self._second: Final = second

    def done(self) -> bool:
        return self._second.done()

    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        self._first.wait(timeout)
        self._second.wait(None if end is None else max(0.0, end - time.monotonic()))

    def result(self) -> Any:
        self.wait()


def announce(comm: Communicator, timeout: float | None) -> Started:
    """Sends the header of a message, one byte; so the receiver knows of the message before it receives the data."""
    return comm.send_async(np.zeros(1, np.uint8), 1, timeout=timeout)


def announcement(comm: Communicator, timeout: float | None) -> Started:
    """Receives the header of a message, one byte, which the sender sends before the data."""
    return comm.recv_async(np.empty(1, np.uint8), 0, timeout=timeout)


class Intake:
    """Assigns incoming messages with one tag to receive operations, some of which accept messages of any rank.

    An `Intake` is made at the first receive operation with this tag that accepts any rank.
    """

    def __init__(self, sources: list[int], channel: Callable[[int], Channel | None], name: str) -> None:
        """`channel(source)` returns the channel from rank `source`, or None if that rank has not asked for one yet.

        `sources`: the ranks that may send. `name`: the name of the thread that waits for messages.
        """
        self._channel: Final = channel
        self._unknown: Final = set(sources)
        self._known: Final[dict[int, Announced]] = {}
        self._lost: Final[dict[int, Exception]] = {}
        self._name: Final = name
        self._lock: Final = threading.Lock()
        self._waiting: list[FromAny] = []
        self._thread: threading.Thread | None = None
        self._closed: BaseException | None = None

    def put(self, receive: FromAny) -> None:
        with self._lock:
            if self._closed is not None:
                raise self._closed
            receive.lost = self._lost
            self._waiting.append(receive)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self, error: BaseException) -> None:
        """Make receives in progress fail with `error`."""
        with self._lock:
            self._closed = error
            thread = self._thread
            for receive in self._waiting:
                receive.fail(error)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        pause, look = _SHORTEST, 0.0
        while True:
            with self._lock:
                self._waiting = [receive for receive in self._waiting if not receive.begun()]
                if not self._waiting:
                    self._thread = None
                    return
                waiting = list(self._waiting)
            if time.monotonic() >= look:
                try:
                    self._look()
                except Exception as error:  # the group has ended, or its store is lost
                    for receive in waiting:
                        receive.fail(error)
                look = time.monotonic() + _LOOKS
            there = self._there()
            if any(self._match(receive, there) for receive in waiting):  # earlier receives first
                pause = _SHORTEST
            else:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)

    def _look(self) -> None:
        for source in sorted(self._unknown):
            channel = self._channel(source)
            if channel is not None:
                self._unknown.discard(source)
                self._known[source] = Announced(channel)

    def _there(self) -> set[int]:
        """The ranks of which a message has come. Looked at once for all receives: a later one overtakes none."""
        there = set()
        for source, announced in list(self._known.items()):
            try:
                if announced.there():
                    there.add(source)
            except Exception as error:  # that rank is lost, or has ended the group
                del self._known[source]
                self._lost[source] = error
        return there

    def _match(self, receive: FromAny, there: set[int]) -> bool:
        """Give `receive` a message that has come, or the error if none can come; returns whether either was given."""
        fitting = there if receive.wanted is None else there & {receive.wanted}
        if fitting:
            receive.source = min(fitting)
            there.remove(receive.source)
            announced = self._known[receive.source]
            receive.begin(lambda: announced.take(receive.receive))
            return True
        lost = self._lost if receive.wanted is None else self._lost.keys() & {receive.wanted}
        if lost and (receive.wanted is not None or not (self._known or self._unknown)):
            receive.fail(self._lost[min(lost)])
            return True
        return False
