"""Completes torch's futures when operations end, even if callbacks of futures block.

Invariant: a callback may wait for any other future. At each moment one thread, the leader, waits for the next work to
end. Completing a future runs its callbacks, so before that another thread becomes the leader if there is more work to
wait for.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, NoReturn, Protocol


class Fulfilled(Protocol):
    """A work that needs an action, `fulfil`, when it has ended."""

    def until_done(self) -> None:
        """Block until the work has succeeded or failed. Raises nothing."""

    def fulfil(self) -> None:
        """Do what is needed after the end. Raises nothing."""


class Completer:
    """Calls `fulfil` of works that end in the order in which they are put here, as works of one communicator do.

    It starts a thread with the first work, and one more for each callback that blocks.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._works: Final[deque[Fulfilled]] = deque()
        self._changed: Final = threading.Condition(threading.Lock())
        self._threads: Final[set[threading.Thread]] = set()
        self._idle = 0
        self._led = False  # whether there is a leader
        self._closed = False

    def put(self, work: Fulfilled) -> None:
        """Call `work.fulfil()` as soon as the work has ended."""
        with self._changed:
            self._works.append(work)
            self._have_a_leader()

    def close(self) -> None:
        """End the threads after all works are done. Works in progress have to end without a further call.

        A callback may call `close`.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join()

    def _have_a_leader(self) -> None:
        if self._led or not self._works:
            return
        if self._idle:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work.until_done()
            with self._changed:
                self._led = False
                self._have_a_leader()
            work.fulfil()
            del work  # else its tensors would live until the next work comes
        with self._changed:
            self._threads.discard(threading.current_thread())

    def _next(self) -> Fulfilled | None:
        """Become the leader and return the next work; None after `close`."""
        with self._changed:
            while self._led or not self._works:
                if self._closed and not self._works:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._led = True
            return self._works.popleft()


class Failure:
    """The value of a future that failed: any access to it raises the error.

    Futures completed by Python cannot pass errors to C++. There DistributedDataParallel expects tensors as the value:
    it pickles the value to find them, or prints it if there are none. Both raise the error with its own type.
    """

    def __init__(self, error: Exception) -> None:
        self._error: Final = error

    def throw(self, *_: Any) -> NoReturn:
        raise self._error

    __reduce_ex__ = __repr__ = __str__ = throw
