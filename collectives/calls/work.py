"""Work: an operation that runs in the background, and waiting for it from threads and event loops.

Invariant: the caller does not touch the arrays of an operation until the operation is done. The first thread that waits
for a Work produces its result, only once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from collectives.arrays.array import check_timeout
from collectives.native import _engine

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Ticket(Protocol):
    """The engine's handle of an operation."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None) -> None: ...


class Tickets:
    """One handle for several operations, which is done when all operations are done.

    `tickets`: the handles of the operations, in the order in which these were started.
    """

    __slots__ = ("_tickets",)

    def __init__(self, tickets: Sequence[Ticket]) -> None:
        self._tickets: Final = tuple(tickets)

    def done(self) -> bool:
        return all(ticket.done() for ticket in reversed(self._tickets))

    def wait(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        # The last operation ends last, so this thread wakes up once. Errors are raised below, the first one first.
        with suppress(Exception):
            for ticket in self._tickets[-1:]:
                ticket.wait(timeout)
        for ticket in self._tickets:
            ticket.wait(None if end is None else max(0.0, end - time.monotonic()))


class Work(Generic[T]):
    """A handle of a call that runs in the background. Do not touch the call's arrays before the call is done.

    `await work` returns the result, as `wait` and `result` do. Operations of one communicator complete in the order in
    which they were started. A Work keeps its communicator alive.
    """

    __slots__ = ("_deliver", "_delivered", "_lock", "_owner", "_result", "_ticket", "_waiter")

    def __init__(self, ticket: Ticket | None, deliver: Callable[[], T], waiter: Waiter, owner: object = None) -> None:
        """`owner`: the communicator. The Work keeps it alive, because its end would end the operation."""
        self._owner = owner
        self._ticket = ticket  # None: there was nothing to wait for
        self._deliver = deliver
        self._waiter = waiter
        self._lock = threading.Lock()
        self._delivered = False
        self._result: T | None = None

    def done(self) -> bool:
        """Whether the operation in the background has completed or failed. Does not block."""
        return self._ticket is None or self._ticket.done()

    def wait(self, timeout: float | None = None) -> T:
        """Blocks until the operation is done. Raises its error, or returns what the call without `_async` returns.

        `timeout`: in seconds; None waits until the operation's own deadline. If `timeout` passes first, OpTimeout is
        raised and the operation continues. ValueError for a negative or NaN timeout.
        """
        limit = None if timeout is None else check_timeout(timeout)
        if self._ticket is not None:
            self._ticket.wait(limit)
        with self._lock:
            if not self._delivered:
                self._result = self._deliver()
                self._delivered = True
        return cast(T, self._result)

    @property
    def ticket(self) -> Ticket | None:
        """The engine's handle; None if the call was complete at once."""
        return self._ticket

    def result(self) -> T:
        """The same as `wait()`."""
        return self.wait()

    def in_stream(self) -> T:
        """As `wait()`, but returns at once if the operation is in a CUDA stream: use the result in that stream."""
        if isinstance(self._ticket, _engine.StreamTicket):
            return self._deliver()
        return self.wait()

    def __await__(self) -> Generator[Any, None, T]:
        check: Callable[[], None] | None = getattr(self._ticket, "check", None)
        if check is not None:  # the call is in a `group()` block, which cannot end while a thread waits inside it
            check()
        if not self.done():
            yield from self._waiter.completion(self).__await__()
        return self.result()


class Waiter:
    """A communicator's thread that notifies asyncio's event loops when operations complete.

    Operations complete in the order in which they were started, and the thread waits for them in this order. The thread
    runs only while an event loop waits for an operation.
    """

    __slots__ = ("_lock", "_waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # None while there is no thread: most communicators never need one.
        self._waiting: deque[tuple[Work[Any], asyncio.AbstractEventLoop, asyncio.Future[None]]] | None = None

    def completion(self, work: Work[Any]) -> asyncio.Future[None]:
        """Returns an asyncio future that is set when `work` is done, whether or not it failed.

        The future belongs to the running event loop.
        """
        import asyncio  # is loaded already where a coroutine awaits

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._waiting is None:
                self._waiting = deque()
                threading.Thread(target=self._run, name="collectives-waiter", daemon=True).start()
            self._waiting.append((work, loop, future))
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._waiting = None
                    return
                work, loop, future = self._waiting.popleft()
            try:
                if work._ticket is not None:
                    work._ticket.wait(None)
            except BaseException:
                pass  # raised again where the result is read
            try:
                loop.call_soon_threadsafe(_complete, future)
            except RuntimeError:
                continue  # the loop was closed meanwhile: no coroutine waits any more


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
