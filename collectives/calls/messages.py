"""Turns the arguments of send, recv and sendrecv into operations of the engine.

Invariant: arguments are checked completely before anything is sent. A message contains its sender's rank and its
length. The receive operation contains the dtype, the largest length, and the ranks from which it accepts a message.
"""

from __future__ import annotations

from typing import Any, Final

from collectives.arrays.array import check_rank, reading, share, updating
from collectives.calls.call import Call, Exchange
from collectives.calls.moves import Calls
from collectives.calls.status import Status


class MessageCalls:
    """Checks the arguments of send, recv and sendrecv on one communicator, and returns objects that run these calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls: Final = calls

    def send(self, x: Any, _out: Any, timeout: float | None, dest: int) -> Call:
        deadline = self._calls.limit(timeout)
        dest = check_rank(dest, self._calls.size, "dest")
        inp = reading(x, moved=True)
        operation = self._calls.prepare.sending(dest, inp.dtype, inp.size)
        return Call(operation, inp, None, None, deadline.left)

    def recv(
        self, out: Any, _out: Any, timeout: float | None, source: int | None, status: Status | None = None
    ) -> Call:
        deadline = self._calls.limit(timeout)
        if source is not None:
            source = check_rank(source, self._calls.size, "source")
        if status is not None and not isinstance(status, Status):
            raise TypeError(f"status must be a collectives.Status, not {type(status).__name__}")
        target = updating(out, "out", moved=True)  # a shorter message leaves the rest unchanged
        operation = self._calls.prepare.receiving(source, target.host.dtype, target.host.size)
        return Call(operation, None, target.host, target, deadline.left, status=status)

    def sendrecv(
        self, x: Any, out: Any, timeout: float | None, dest: int, source: int | None, status: Status | None
    ) -> Exchange:
        receive = self.recv(out, None, timeout, source, status)
        send = self.send(x, None, timeout, dest)
        assert send.inp is not None and receive.out is not None
        return Exchange(send, receive, share(send.inp, receive.out))
