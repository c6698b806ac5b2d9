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
    """The methods of a communicator for messages between two ranks. `Communicator` is derived from this class."""

    _runner: Runner
    _messages: MessageCalls

    @repeated("x")
    def send(self, x: Any, dest: int, *, timeout: Seconds = None, stream: Any = None) -> None:
        """Sends the array `x` to rank `dest`, which receives it by `recv`. Returns when `x` may be changed again.

        `send` may wait for that `recv`. If two ranks both send first, each may wait for the other until the time limit.
        So one of them has to receive first, or both call `sendrecv`. `dest` may be this rank itself: then `send` copies
        the message and never waits.
        """
        self._runner.remembered(self._messages.send, x, None, timeout, dest, stream=stream)

    def send_async(self, x: Any, dest: int, *, timeout: Seconds = None, stream: Any = None) -> Work[None]:
        """`send` in the background."""
        return self._runner.start(self, self._messages.send, x, None, timeout, dest, stream=stream)

    @repeated("out")
    def recv(
        self,
        out: Any,
        source: int | None = None,
        *,
        status: Status | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Receives the next message of rank `source` into `out`, and returns `out`.

        If `source` is None, receives the next message of any rank. Ranks that have ended are then ignored, and PeerLost
        is raised when all other ranks have ended. The message has to have the dtype of `out` and at most as many
        elements as `out`. Its elements fill `out` from the beginning; the rest of `out` stays as it was. `status`, if
        given, receives the sender and the number of elements. Messages of one rank arrive in the order in which it sent
        them.

        DesyncError, with `out` unchanged, if the dtype differs, if the message is longer than `out`, or if all other
        ranks are inside a collective. ValueError if this rank is the only possible sender and has sent nothing to
        itself.
        """
        if status is None:
            return self._runner.remembered(self._messages.recv, out, None, timeout, source, stream=stream)
        return self._runner.call(self._messages.recv, out, None, timeout, source, status, stream=stream)

    def recv_async(
        self,
        out: Any,
        source: int | None = None,
        *,
        status: Status | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`recv` in the background."""
        return self._runner.start(self, self._messages.recv, out, None, timeout, source, status, stream=stream)

    def sendrecv(
        self,
        x: Any,
        dest: int,
        out: Any,
        source: int | None = None,
        *,
        status: Status | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Sends `x` to rank `dest` and receives a message of rank `source` into `out` at the same time. Returns `out`.

        So all ranks may pass arrays around a ring without a deadlock. Otherwise arguments and errors are as in `send`
        and `recv`. The two peers may call `recv` and `send` instead of `sendrecv`. `x` and `out` may have different
        lengths and dtypes, or be the same array.
        """
        return self._runner.call(self._messages.sendrecv, x, out, timeout, dest, source, status, stream=stream)

    def sendrecv_async(
        self,
        x: Any,
        dest: int,
        out: Any,
        source: int | None = None,
        *,
        status: Status | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`sendrecv` in the background."""
        return self._runner.start(self, self._messages.sendrecv, x, out, timeout, dest, source, status, stream=stream)
