"""Messages from one rank to another: send and recv of a process group.

Invariant: messages with the same source, destination and tag keep the order of the calls, independent of all other
operations. All pass through host memory. Messages of CUDA tensors that NCCL carries, if the ranks have agreed on that,
are not here: see `Group._message`.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from collectives.core.communicator import Communicator
from collectives.native.errors import Aborted
from collectives.torch.futures import Completer
from collectives.torch.intake import Both, FromAny, Intake, announce, announcement
from collectives.torch.meeting import Channel, Place
from collectives.torch.operations import after_all
from collectives.torch.profiling import recorded
from collectives.torch.tensors import filling, reading
from collectives.torch.through_host import arriving, leaving
from collectives.torch.works import Pending, Started


class Messages:
    """The messages that rank `rank` of `size` sends and receives."""

    def __init__(self, place: Place, rank: int, size: int) -> None:
        self._place: Final = place
        self._rank: Final = rank
        self._size: Final = size
        self._lock: Final = threading.Lock()
        self._channels: Final[dict[tuple[int, int, int], tuple[Channel, Completer]]] = {}  # source, destination, tag
        self._intakes: Final[dict[int, tuple[Intake, Completer]]] = {}
        self._closed: Aborted | None = None

    def send(self, tensor: Any, dest: int, tag: int, timeout: float | None) -> Pending:
        array = reading(leaving(tensor), moved=True)
        channel, completer = self._channel(self._rank, dest, tag)

        def start(comm: Communicator) -> Started:
            return Both(announce(comm, timeout), comm.send_async(array, 1, timeout=timeout))

        with recorded("send", (tensor,)) as record:
            started = channel.start(start, self._seconds(timeout))
        return Pending(started, (tensor,), None, completer, record=record)

    def recv(self, tensor: Any, source: int | None, tag: int, timeout: float | None) -> Pending:
        """Receives into `tensor` the next message with this tag from rank `source`; if `source` is None, from any rank.

        `timeout`: in seconds. Returns torch's `Work` for the operation.
        """
        host, copy = arriving(tensor)
        array, finish = filling(host, moved=True)
        after = after_all(finish, copy)
        seconds = self._seconds(timeout)

        def start(comm: Communicator) -> Started:
            return Both(announcement(comm, timeout), comm.recv_async(array, 0, timeout=timeout))

        def take(channel: Channel) -> Started:
            return channel.start(lambda comm: comm.recv_async(array, 0, timeout=timeout), seconds)

        intake = self._intake(tag, source)
        with recorded("recvAnySource" if source is None else "recv", (tensor,)) as record:
            if intake is None:
                assert source is not None
                channel, completer = self._channel(source, self._rank, tag)
                started = channel.start(start, seconds)
                return Pending(started, (tensor,), after, completer, source=lambda: source, record=record)
            taking, completer = intake
            receive = FromAny(source, take, seconds)
            taking.put(receive)
        return Pending(receive, (tensor,), after, completer, source=lambda: receive.source, record=record)

    def close(self, name: str) -> None:
        """Closes all connections for messages between two ranks; operations in progress fail with Aborted.

        `name`: the process group, for the error.
        """
        with self._lock:
            self._closed = Aborted(f"process group {name!r} is closed: it was destroyed")
            intakes, channels = list(self._intakes.values()), list(self._channels.values())
            self._intakes.clear()
            self._channels.clear()
        for intake, _ in intakes:
            intake.close(self._closed)
        for channel, _ in channels:
            channel.close()
        for _, completer in (*intakes, *channels):
            completer.close()

    def _seconds(self, timeout: float | None) -> float:
        return self._place.timeout if timeout is None else timeout

    def _channel(self, source: int, dest: int, tag: int) -> tuple[Channel, Completer]:
        path = source, dest, tag
        with self._lock:
            if self._closed is not None:
                raise self._closed
            found = self._channels.get(path)
            if found is None:
                channel = self._place.channel(source, dest, tag, sends=source == self._rank)
                found = self._channels[path] = channel, Completer(f"collectives futures {source} {dest} {tag}")
            return found

    def _intake(self, tag: int, source: int | None) -> tuple[Intake, Completer] | None:
        """The `Intake` that matches receives of `tag`; None if all of them, the current one too, name a source."""
        with self._lock:
            if self._closed is not None:
                raise self._closed
            found = self._intakes.get(tag)
            if found is None and source is None:
                others = [rank for rank in range(self._size) if rank != self._rank]
                intake = Intake(others, lambda rank: self._asked(rank, tag), f"collectives any {tag}")
                found = self._intakes[tag] = intake, Completer(f"collectives futures any {tag}")
            return found

    def _asked(self, source: int, tag: int) -> Channel | None:
        path = source, self._rank, tag
        if path not in self._channels and not self._place.asked(*path):
            return None
        return self._channel(*path)[0]
