"""A view of a store in which every key gets a prefix.

Invariant: two prefix stores over one store never access each other's keys, as long as neither prefix begins with the
other prefix. Closing the view does not close the wrapped store: its owner closes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectives.native.errors import OpTimeout, StoreError

from ._checks import DEFAULT_TIMEOUT, Deadline, check_key, check_keys, missing
from .store import Store, check_store


class PrefixStore:
    """A key-value store that puts `prefix` before every key and passes the calls on to another store.

    Error messages show the keys with the prefix.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = check_store(store)
        self._prefix = check_key(prefix)
        self._closed = False

    def __repr__(self) -> str:
        return f"{self._store!r} under {self._prefix!r}"

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._open().set(self._prefix + check_key(key), value, timeout)

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        return self._open().get(self._prefix + check_key(key), timeout)

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        names = [self._prefix + key for key in check_keys(keys)]
        deadline = Deadline(timeout)
        while True:
            try:
                # Wait for at most 0.5 s at a time, so that closing this view ends the wait.
                return self._open().wait(names, min(deadline.left(), 0.5))
            except OpTimeout:
                if deadline.passed:
                    absent = [name for name in names if self._open().get(name) is None]
                    raise missing(repr(self), absent or names, deadline.elapsed()) from None

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        return self._open().add(self._prefix + check_key(key), amount, timeout)

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        return self._open().compare_set(self._prefix + check_key(key), expected, value, timeout)

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        return self._open().delete([self._prefix + key for key in check_keys(keys)], timeout)

    def close(self) -> None:
        self._closed = True

    def _open(self) -> Store:
        if self._closed:
            raise StoreError(f"{self!r} was closed")
        return self._store
