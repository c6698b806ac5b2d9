"""Messages from one rank to another: send and recv of a process group.

Invariant: messages of one pair, direction and tag keep the order of the calls, apart from all other operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from collectives.communicator import Communicator
from collectives.torch.futures import Completer
from collectives.torch.meeting import Channel, Place
from collectives.torch.operations import After
from collectives.torch.profiling import begin
from collectives.torch.tensors import filling, reading
from collectives.torch.works import Pending
from native.errors import Aborted

Path: TypeAlias = tuple[int, int, int]  # source, destination, tag
Start: TypeAlias = "Callable[[Communicator], Any]"


class Messages:
    """Those that rank `rank` of `size` sends and receives."""

    def __init__(self, place: Place, rank: int, size: int) -> None:
        self._place: Final = place
        self._rank: Final = rank
        self._size: Final = size
        self._lock: Final = threading.Lock()
        self._channels: Final[dict[Path, tuple[Channel, Completer]]] = {}
        self._closed = ""

    def send(self, tensor: Any, dest: int, tag: int, timeout: float | None) -> Pending:
        array = reading(tensor, moved=True)
        start: Start = lambda comm: comm.send_async(array, 1, timeout=timeout)  # noqa: E731
        return self._message((self._rank, dest, tag), tensor, None, start, timeout, "send")

    def recv(self, tensor: Any, source: int, tag: int, timeout: float | None) -> Pending:
        array, finish = filling(tensor, moved=True)
        after = None if finish is None else lambda _: finish()
        start: Start = lambda comm: comm.recv_async(array, 0, timeout=timeout)  # noqa: E731
        return self._message((source, self._rank, tag), tensor, after, start, timeout, "recv")

    def recv_any(self, tensor: Any, tag: int, timeout: float | None) -> Pending:
        raise NotImplementedError(
            "recv from any rank: ranks of this backend receive from whom they name, so give src= (a rank that does not "
            "know who sends can gather a flag first)"
        )

    def close(self, name: str) -> None:
        """End the channels of the group of that name; what is under way fails with Aborted."""
        with self._lock:
            self._closed = name
            channels, completers = zip(*self._channels.values(), strict=True) if self._channels else ((), ())
            self._channels.clear()
        for end in (*channels, *completers):
            end.close()

    def _message(
        self, path: Path, tensor: Any, after: After, start: Start, timeout: float | None, title: str
    ) -> Pending:
        seconds = self._place.timeout if timeout is None else timeout
        source, dest, tag = path
        with self._lock:
            if self._closed:
                raise Aborted(f"process group {self._closed!r} is closed: it was destroyed")
            found = self._channels.get(path)
            if found is None:
                channel = self._place.channel(source, dest, tag, sends=source == self._rank)
                found = self._channels[path] = channel, Completer(f"collectives futures {source} {dest} {tag}")
        channel, completer = found
        record = begin(title, (tensor,))
        try:
            started = channel.start(start, seconds)
        except BaseException:
            if record is not None:
                record.end()
            raise
        return Pending(started, (tensor,), after, completer, source=source, record=record)
