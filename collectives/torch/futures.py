"""Completes torch's futures when operations end, even if callbacks of futures block.

Invariant: a callback may wait for any other future. One thread at a time, the leader, waits for the next work to end; a
work is torch's handle of a running operation. Before this thread completes the work's future, which runs callbacks,
another thread becomes the leader if there are more works.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, NoReturn, Protocol


class Fulfilled(Protocol):
    """An operation in progress that has a torch future, which `fulfil` completes once the operation has ended."""

    def until_done(self) -> None:
        """Blocks until the operation has succeeded or failed. Raises nothing."""

    def fulfil(self) -> None:
        """Completes the operation's torch future; called when the operation has ended. Raises nothing."""


class Completer:
    """Completes the torch futures of operations in progress, in threads, as soon as the operations have ended.

    Operations must end in the order in which `put` got them, as the operations of one communicator do. The first
    operation starts a thread. If a callback of a future blocks, another thread is started.
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
        """Waits until all operations have ended, then ends the threads that complete their futures.

        Operations in progress must end by themselves. A callback of a future may call `close`.
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
        """Become the leader and return the next work; None if this object is closed and no work is left."""
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
    """The value of a future whose operation failed: pickling or printing this value raises the operation's error.

    A future that Python completes cannot pass an error to C++. The C++ code of DistributedDataParallel pickles the
    future's value to find tensors in it, or prints a value without tensors. Both raise the error with its own type.
    """

    def __init__(self, error: Exception) -> None:
        self._error: Final = error

    def throw(self, *_: Any) -> NoReturn:
        raise self._error

    __reduce_ex__ = __repr__ = __str__ = throw
