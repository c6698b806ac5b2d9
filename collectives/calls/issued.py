"""The operations that an engine has put into streams, until they are known to be complete.

Invariant: adding an operation never waits, and forgets those before it that are complete. What an operation uses lives
until it is known to be complete.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from collectives.calls.moves import Deadline
from collectives.native import _engine


class Issued:
    """The operations of one engine and one communicator that may be incomplete, in the order of their issue."""

    def __init__(self) -> None:
        self._all: Final[deque[tuple[int, _engine.StreamTicket, Any]]] = deque()  # with stream, and what it uses

    def add(self, stream: int, ticket: _engine.StreamTicket, keeps: Any = None) -> None:
        """`keeps`: objects with memory that the operation uses, if nothing else orders the end of this memory."""
        self._forget()
        self._all.append((stream, ticket, keeps))

    def _forget(self) -> None:
        while self._all and self._all[0][1].done():
            self._all.popleft()

    def wait(self, stream: int | None, deadline: Deadline | None) -> None:
        """Wait on the host for all issued operations, or only for operations in `stream`; raises their first error."""
        for used, ticket, _ in tuple(self._all):
            if stream is None or used == stream:
                ticket.wait(None if deadline is None else deadline.left)
        self._forget()

    def clear(self) -> None:
        """Forgets all operations. Called after the communicator was closed, which ended the operations."""
        self._all.clear()

    @property
    def unfinished(self) -> int:
        """How many issued operations are not complete."""
        return sum(not ticket.done() for _, ticket, _ in tuple(self._all))
