"""Messages from one rank to another: the methods of a communicator that concern two ranks.

Invariant: messages from one rank to another arrive in the order in which they were sent.
"""

from __future__ import annotations

from typing import Any

from collectives.calls.messages import MessageCalls
from collectives.calls.repeated import repeated
from collectives.calls.runner import Runner, Seconds
from collectives.calls.status import Status
from collectives.calls.work import Work


class PointToPoint:
    """A base class of `Communicator`; the docstring of `Communicator` describes what all calls have in common."""

    _runner: Runner
    _messages: MessageCalls

    @repeated("x")
    def send(self, x: Any, dest: int, *, timeout: Seconds = None) -> None:
        """Send `x` to rank `dest`, which calls `recv`. Returns when `x` may change, at the latest after that `recv`.

        If two ranks exchange arrays, one of them has to receive first, or both call `sendrecv`: if both send first,
        each may wait for the other forever. `dest` may be this rank itself: then `send` copies the message and never
        waits.
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

        The message has to have the dtype of `out` and at most as many elements as `out`. They fill `out` from its
        beginning; the rest of `out` stays as it was. `status` is set to the sender and the number of elements. Messages
        of one rank arrive in the order in which it sent them. DesyncError, with `out` unchanged, if the dtype differs,
        if the message is longer than `out`, or if all other ranks are inside a collective. If `source` is None, ranks
        that have ended are ignored; PeerLost when all other ranks have ended. ValueError if this rank is the only
        possible sender and has sent nothing to itself.
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
        """Send `x` to rank `dest` and receive into `out` from `source`, both at once. So ranks may form a ring.

        The arguments and errors are otherwise those of `send` and `recv`. The two peers may call `recv` and `send`
        instead of `sendrecv`. `x` and `out` may have different lengths and dtypes, or be the same array. Returns `out`.
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
