"""The operations that an engine has put into streams, until they are known to be complete.

Invariant: adding an operation never waits, and forgets those before it that are complete.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from collectives.calls.moves import Deadline
from collectives.native import _engine


class Issued:
    """The operations of one engine and one communicator that may be incomplete, in the order of their issue."""

    def __init__(self) -> None:
        self._all: Final[deque[tuple[int, _engine.StreamTicket]]] = deque()  # with the stream of each

    def add(self, stream: int, ticket: _engine.StreamTicket) -> None:
        while self._all and self._all[0][1].done():
            self._all.popleft()
        self._all.append((stream, ticket))

    def wait(self, stream: int | None, deadline: Deadline | None) -> None:
        """Wait on the host for all issued operations, or only for operations in `stream`; raises their first error."""
        for used, ticket in tuple(self._all):
            if stream is None or used == stream:
                ticket.wait(None if deadline is None else deadline.left)

    def clear(self) -> None:
        """Forgets all operations. Called after the communicator was closed, which ended the operations."""
        self._all.clear()

    @property
    def unfinished(self) -> int:
        """How many issued operations are not complete."""
        return sum(not ticket.done() for _, ticket in tuple(self._all))
