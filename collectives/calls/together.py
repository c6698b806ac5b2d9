"""Calls that are issued together: those that a `group()` block collects and runs at its end.

Invariant: nothing is sent before the end of the block, and nothing at all if the block ends with an error. All calls
are started before any of them has to be complete, so ranks that all send before they receive do not deadlock. Calls
that a CUDA stream orders are issued first, and in their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from collectives.arrays.array import Array, Target
from collectives.calls.call import Call, Exchange, Ready, Receipt
from collectives.calls.leading import Led
from collectives.calls.passing_many import AnyMany
from collectives.calls.streamed import StreamCall
from collectives.calls.targets import overlap
from collectives.calls.wired import WiredCall
from collectives.calls.work import Ticket, Waiter, Work
from collectives.native import _engine
from collectives.native.errors import Aborted, OpTimeout

# Operation, array to read, array to write, and what copies these arrays meanwhile.
Bound: TypeAlias = "tuple[_engine.Operation, Array | None, Array | None, _engine.CudaTransfer | None]"


class Entry(NamedTuple):
    """One call in a `group()` block: the operations of the C++ engine that it consists of, with their arrays.

    `deliver(receipt)` returns the result of the call; the receipt is the sender and length of the last received
    message. `ticket`: what the call's `Work` waits for.
    """

    operations: tuple[Bound, ...]
    deliver: Callable[[Receipt], Any]
    ticket: BlockTicket


class BlockTicket:
    """The handle by which the `Work` of a call in a `group()` block waits for the block's end, which runs the call.

    `behind`: for a call in a CUDA stream, the ticket of the issued call, for which the `Work` waits too; else None.
    """

    __slots__ = ("_ended", "_error", "_thread", "behind", "result")

    def __init__(self) -> None:
        self._thread: Final = threading.get_ident()
        self._ended: Final = threading.Event()
        self._error: BaseException | None = None
        self.behind: Ticket | None = None
        self.result: Any = None

    @property
    def ended(self) -> bool:
        """Whether the block has ended, or has issued the call."""
        return self._ended.is_set()

    def done(self) -> bool:
        return self._ended.is_set() and (self.behind is None or self.behind.done())

    def check(self) -> None:
        """Raises RuntimeError if the caller must not wait, because it is still inside the `group()` block.

        Only the end of the block runs the call.
        """
        if not self._ended.is_set() and threading.get_ident() == self._thread:
            raise RuntimeError("this call starts when the block of group() ends: wait for it after the block")

    def wait(self, timeout: float | None) -> None:
        self.check()
        end = None if timeout is None else time.monotonic() + timeout
        if not self._ended.wait(timeout):
            raise OpTimeout("the operation is still running")
        if self._error is not None:
            raise self._error
        if self.behind is not None:
            self.behind.wait(None if end is None else max(0.0, end - time.monotonic()))

    def end(self, error: BaseException | None = None) -> None:
        self._error = error
        self._ended.set()


class Together:
    """The calls of one `group()` block, which its end runs."""

    def __init__(self) -> None:
        self._entries: Final[list[Entry]] = []
        self._in_streams: Final[list[tuple[StreamCall | Led, BlockTicket]]] = []
        self._targets: Final[list[Target]] = []
        self._seconds = 0.0
        self._last: Target | None = None

    def add(self, call: Ready) -> Any:
        """Adds a collective or message to the `group()` block; returns the array that will contain its result.

        Raises ValueError for calls that a block cannot contain: calls with a Python function as `op`, calls by another
        package's engine, and calls on a GPU without `out` that run on a copy in host memory.
        """
        if isinstance(call, StreamCall | Led):
            self._take_in_stream(call)
            return call.result
        if isinstance(call, WiredCall):
            self._take_wired(call)
            return call.result
        self._take(call)
        return None if self._last is None else _result(self._last)

    def start(self, call: Ready, waiter: Waiter, owner: object) -> Work[Any]:
        """`add` for an `_async` variant."""
        ticket = self._take_in_stream(call) if isinstance(call, StreamCall | Led) else self._take(call).ticket
        return Work(ticket, lambda: ticket.result, waiter, owner)

    def add_many(self, many: AnyMany) -> list[Any]:
        """Adds an allreduce of a list of arrays to the `group()` block; returns the arrays for its results.

        Small arrays are copied at once, so the caller may change them before the block ends.
        """
        self._take_many(many)
        return [_result(target) for target in many.targets]

    def start_many(self, many: AnyMany, waiter: Waiter, owner: object) -> Work[list[Any]]:
        """`add_many` for its `_async` variant."""
        ticket = self._take_many(many).ticket
        return Work(ticket, lambda: ticket.result, waiter, owner)

    def run(self, group: _engine.Group) -> None:
        """Runs all calls of the `group()` block. Raises their first error; every `Work` of the block raises it too."""
        try:
            self._issue()
            if not self._entries:
                return
            for target in self._targets:
                target.begin()
            calls = [operation for entry in self._entries for operation in entry.operations]
            receipts = iter(group.run_together(calls, self._seconds))
            for entry in self._entries:
                received = [next(receipts) for _ in entry.operations]
                entry.ticket.result = entry.deliver(received[-1] if received else (-1, 0))
        except BaseException as error:
            self.give_up(error)
            raise
        for entry in self._entries:
            entry.ticket.end()

    def give_up(self, cause: BaseException) -> None:
        """Ends all `Work` objects of the `group()` block with the error `cause`, which waiting for them then raises.

        If a call is in a CUDA stream already, its `Work` waits for the stream instead.
        """
        for ticket in (*(ticket for _, ticket in self._in_streams), *(entry.ticket for entry in self._entries)):
            if not ticket.ended:
                ticket.end(cause)

    def forget(self, cause: BaseException) -> None:
        """Makes all `Work` objects of a `group()` block raise Aborted, because the body of the block raised `cause`.

        Nothing of the block was sent to other ranks.
        """
        self.give_up(Aborted(f"nothing was sent: the block of group() ended with {type(cause).__name__}: {cause}"))

    def _take_in_stream(self, call: StreamCall | Led) -> BlockTicket:
        for other, _ in self._in_streams:
            if other.stream != call.stream:
                raise ValueError("the calls on devices in a group() block are in two streams: give all the same one")
        ticket = BlockTicket()
        self._in_streams.append((call, ticket))
        return ticket

    def _issue(self) -> None:
        """Issues the calls that a stream orders: messages that follow one another together, collectives one by one.

        Other ranks may make the same collectives outside a block, and NCCL would run several that are issued together
        in another form than the same ones by themselves.
        """
        messages: list[tuple[StreamCall, BlockTicket]] = []

        def flush() -> None:
            if messages:
                calls = [call for call, _ in messages]
                issued = calls[0].calls.issue_messages(calls, max(call.seconds for call in calls))
                for call, ticket in messages:
                    _end(call, ticket, issued)
                messages.clear()

        for call, ticket in self._in_streams:
            if isinstance(call, StreamCall) and call.is_message:
                if any(_depends(call, before) for before, _ in messages):
                    flush()
                messages.append((call, ticket))
                continue
            flush()
            _end(call, ticket, call.issue(call.seconds))
        flush()

    def _take(self, call: Ready) -> Entry:
        if isinstance(call, Call):
            received, operations = call, [(call.operation, call.taken, call.out, call.native)]
        elif isinstance(call, WiredCall):
            return self._take_wired(call)
        elif isinstance(call, Exchange):
            received = call.received
            operations = [
                (call.sent.operation, call.leaving(), None, call.sent.native),
                (received.operation, None, received.out, received.native),
            ]
        else:
            raise ValueError(
                "neither an op that is a function nor a call that the engine of another package runs can be in a "
                "group() block"
            )
        self._last = received.target
        if received.target is not None:
            _check_given(received.target)
            self._targets.append(received.target)
        return self._append(operations, received.deliver, call.seconds)

    def _take_wired(self, call: WiredCall) -> Entry:
        """Adds a call with a wire format, whose arrays are encoded at once and decoded at the end of the block."""
        self._targets.extend(call.targets)
        encoded = [(step, *call.encoded(step)) for step in call.steps]

        def deliver(_receipt: Receipt) -> Any:
            for step, inp, out in encoded:
                call.decode(step, inp, out)
            return call.result

        operations: list[Bound] = [(step.operation, inp.array, out.array, None) for step, inp, out in encoded]
        return self._append(operations, deliver, call.seconds)

    def _take_many(self, many: AnyMany) -> Entry:
        for target in many.targets:
            _check_given(target)
        self._targets.extend(many.targets)
        operations, seconds = [], 0.0
        for step in many.steps:
            step.pack()
            operations.append((step.call.operation, step.call.taken, step.call.out, step.call.native))
            seconds = max(seconds, step.call.seconds)

        def deliver(_receipt: Receipt) -> list[Any]:
            for step in many.steps:
                step.call.deliver()
                step.unpack()
            return many.deliver()

        return self._append(operations, deliver, seconds)

    def _append(self, operations: list[Bound], deliver: Callable[[Receipt], Any], seconds: float) -> Entry:
        entry = Entry(tuple(operations), deliver, BlockTicket())
        self._entries.append(entry)
        self._seconds = max(self._seconds, seconds)
        return entry


def _end(call: StreamCall | Led, ticket: BlockTicket, issued: Ticket) -> None:
    ticket.behind, ticket.result = issued, call.delivered()
    ticket.end()


def _depends(call: StreamCall, before: StreamCall) -> bool:
    """Whether the message `call` uses memory that `before` writes, or writes memory that `before` reads."""
    pairs = [(x, y) for x in call.written for y in (*before.written, *before.read)]
    pairs += [(x, y) for x in call.read for y in before.written]
    return any(overlap(x, y) for x, y in pairs)


def _check_given(target: Target) -> None:
    if target.fresh:
        raise ValueError("x lies on a device: give out= in a group() block, whose results are there when it ends")


def _result(target: Target) -> Any:
    """The array for the result."""
    return target.result if target.origin is None else target.origin
