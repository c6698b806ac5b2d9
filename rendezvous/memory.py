"""A store shared by the threads of one process.

Invariant: all open stores of one name share their keys. The keys are deleted when the last of these stores is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from collectives.native.errors import StoreError

from ._checks import DEFAULT_TIMEOUT, Deadline, check_amount, check_key, check_keys, check_timeout, check_value, missing
from ._table import Table


class _Space:
    """The state that the stores of one name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.table = Table()
        self.users = 0


_spaces: dict[str, _Space] = {}
_spaces_lock = threading.Lock()


class MemoryStore:
    """The key-value store with the URL `memory://name`, which the threads of one process share.

    `wait` blocks without polling: the thread that stores the last missing key wakes the waiting thread.
    """

    def __init__(self, name: str = "default") -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a memory store is a str, not {type(name).__name__}")
        self._name = name
        self._closed = False
        self._waiting: set[threading.Event] = set()
        with _spaces_lock:
            self._space = _spaces.setdefault(name, _Space())
            self._space.users += 1

    def __repr__(self) -> str:
        return f"memory://{self._name}"

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        check_key(key)
        data = check_value(value)
        check_timeout(timeout)
        with self._space.lock:
            self._table().set(key, data)

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        check_key(key)
        check_timeout(timeout)
        with self._space.lock:
            return self._table().get(key)

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        names = check_keys(keys)
        deadline = Deadline(timeout)
        while True:
            event = threading.Event()
            with self._space.lock:
                table = self._table()
                values = [value for name in names if (value := table.get(name)) is not None]
                if len(values) == len(names):
                    return values
                watch = table.watch(table.missing(names), event.set)
                self._waiting.add(event)
            # threading refuses very long timeouts, so wait for an hour at most, and check again
            event.wait(min(deadline.left(), 3600.0))
            with self._space.lock:
                self._waiting.discard(event)
                self._space.table.unwatch(watch)
                absent = self._table().missing(names)
            if absent and deadline.passed:
                raise missing(repr(self), absent, deadline.elapsed())

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        check_key(key)
        check_amount(amount)
        check_timeout(timeout)
        with self._space.lock:
            return self._table().add(key, amount, repr(self))

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        check_key(key)
        old = None if expected is None else check_value(expected)
        new = None if value is None else check_value(value)
        check_timeout(timeout)
        with self._space.lock:
            return self._table().compare_set(key, old, new)

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        names = check_keys(keys)
        check_timeout(timeout)
        with self._space.lock:
            return self._table().delete(names)

    def close(self) -> None:
        with _spaces_lock, self._space.lock:
            if self._closed:
                return
            self._closed = True
            for event in self._waiting:
                event.set()
            self._space.users -= 1
            if not self._space.users:
                _spaces.pop(self._name, None)

    def _table(self) -> Table:
        if self._closed:
            raise StoreError(f"{self!r} was closed")
        return self._space.table
