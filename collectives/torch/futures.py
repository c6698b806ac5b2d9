"""Completing torch's futures as operations end, whatever their callbacks do.

Invariant: a callback may wait for any other future. At each moment one thread waits for the next work that is to end;
before it completes a future, which runs callbacks, another one takes its place if there is something to wait for.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, NoReturn, Protocol


class Fulfilled(Protocol):
    """A work with something to be done when it has ended."""

    def until_done(self) -> None:
        """Block until it has ended, well or not. Raises nothing."""

    def fulfil(self) -> None:
        """Do that. Raises nothing."""


class Completer:
    """Works that end in the order in which they are given to it, as those of one communicator do.

    Its threads are there from the first work on: one, and one more for each callback that blocks.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._works: Final[deque[Fulfilled]] = deque()
        self._changed: Final = threading.Condition(threading.Lock())
        self._threads: Final[set[threading.Thread]] = set()
        self._idle = 0
        self._led = False  # whether a thread waits for the end of a work
        self._closed = False

    def put(self, work: Fulfilled) -> None:
        """Have `work` fulfilled as soon as it has ended."""
        with self._changed:
            self._works.append(work)
            self._have_a_leader()

    def close(self) -> None:
        """End the threads, once all works that it was given are done: they have to be, or to end by themselves.

        A callback may call it.
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
            del work  # or its tensors would live until the next one comes
        with self._changed:
            self._threads.discard(threading.current_thread())

    def _next(self) -> Fulfilled | None:
        """Become the leader of the next work. None at the end."""
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

    Python's futures keep errors from C++, where DistributedDataParallel expects tensors as the value: it pickles the
    value to find them, or prints it because there are none. Both raise the error with its own type.
    """

    def __init__(self, error: Exception) -> None:
        self._error: Final = error

    def throw(self, *_: Any) -> NoReturn:
        raise self._error

    __reduce_ex__ = __repr__ = __str__ = throw
