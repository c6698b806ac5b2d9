"""Messages from one rank to another: the methods of a communicator that concern two ranks.

Invariant: messages between two ranks arrive in the order in which they were sent.
"""

from __future__ import annotations

from typing import Any

from collectives.calls.messages import MessageCalls
from collectives.calls.repeated import repeated
from collectives.calls.runner import Runner, Seconds
from collectives.calls.status import Status
from collectives.calls.work import Work


class PointToPoint:
    """A part of `Communicator`, whose docstring applies to all calls."""

    _runner: Runner
    _messages: MessageCalls

    @repeated("x")
    def send(self, x: Any, dest: int, *, timeout: Seconds = None) -> None:
        """Send `x` to rank `dest`, which calls `recv`. Returns when `x` may change, at the latest after that `recv`.

        Operations of a communicator run one after another, also in the background. So of two ranks that exchange
        arrays, one has to receive first, or both call `sendrecv`. `dest` may be this rank itself: then `send` copies
        the message and never waits.
        """
        self._runner.remembered(self._messages.send, x, None, timeout, dest)

    def send_async(self, x: Any, dest: int, *, timeout: Seconds = None) -> Work[None]:
        """`send` in the background."""
        return self._runner.start(self, self._messages.send, x, None, timeout, dest)

    @repeated("out")
    def recv(
        self, out: Any, source: int | None = None, *, status: Status | None = None, timeout: Seconds = None
    ) -> Any:
        """Receive into `out` the next message of rank `source`; None: of the first rank that sends. Returns `out`.

        The message has out's dtype and at most its number of elements, which fill it from the beginning; the rest of
        `out` stays as it was. `status` is set to the sender and the number of elements. Messages of one rank arrive in
        the order in which it sent them. DesyncError, with `out` unchanged, if the dtype differs or the message is
        longer, and if all other ranks are inside a collective. Without a source, ranks that have ended are ignored;
        PeerLost when all other ranks have ended. ValueError if only this rank itself could send a message, and has not
        sent one.
        """
        if status is None:
            return self._runner.remembered(self._messages.recv, out, None, timeout, source)
        return self._runner.run(self._messages.recv, out, None, timeout, source, status)

    def recv_async(
        self, out: Any, source: int | None = None, *, status: Status | None = None, timeout: Seconds = None
    ) -> Work[Any]:
        """`recv` in the background."""
        return self._runner.start(self, self._messages.recv, out, None, timeout, source, status)

    def sendrecv(
        self,
        x: Any,
        dest: int,
        out: Any,
        source: int | None = None,
        *,
        status: Status | None = None,
        timeout: Seconds = None,
    ) -> Any:
        """Send `x` to rank `dest` and receive into `out` from `source`, both at once: ranks may form a ring.

        Otherwise as `send` and `recv`, which the other ranks may call instead. `x` and `out` may have different lengths
        and dtypes, or be the same array. Returns `out`.
        """
        return self._runner.run(self._messages.sendrecv, x, out, timeout, dest, source, status)

    def sendrecv_async(
        self,
        x: Any,
        dest: int,
        out: Any,
        source: int | None = None,
        *,
        status: Status | None = None,
        timeout: Seconds = None,
    ) -> Work[Any]:
        """`sendrecv` in the background."""
        return self._runner.start(self, self._messages.sendrecv, x, out, timeout, dest, source, status)
