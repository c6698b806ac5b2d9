"""Adapts torch's stores (TCPStore, FileStore, HashStore, PrefixStore) to this library's interface of a store.

Invariant: each stored value begins with a new random number. It shows in the result of compare_set whether this rank or
another has written the value. (compare_set is the only call of torch's stores that is atomic and never blocks.) A
deleted key keeps a random number without a value.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from collectives.native.errors import CollectiveError, StoreError
from collectives.rendezvous._checks import (
    DEFAULT_TIMEOUT,
    Deadline,
    check_amount,
    check_key,
    check_keys,
    check_timeout,
    check_value,
    count,
    missing,
)

T = TypeVar("T")

MOST: Final = (8 << 20) - 1024  # bytes; TCPStore drops a connection that sends 8 MiB

_VALUE: Final = b"="
_DELETED: Final = b"-"
_NUMBER: Final = 8  # random bytes after one of these marks
_NEVER: Final = b"?"  # never stored: comparing with it changes nothing, and returns it if there is no key
_SHORTEST, _LONGEST = 0.0005, 0.02  # seconds between two reads


class TorchStore:
    """A store of this library that keeps its keys in `store`, a store of torch.

    `close` leaves torch's store open. Values have at most `MOST` bytes.
    """

    def __init__(self, store: Any) -> None:
        self._store: Final = store
        self._closed = False

    def __repr__(self) -> str:
        return f"torch's {type(self._store).__name__}"

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        name, data = check_key(key), _new(_checked(value))
        check_timeout(timeout)
        self._call(lambda: self._store.set(name, data))
        self._read(name)  # TCPStore does not confirm `set`: after this read other ranks see the value

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        check_timeout(timeout)
        return _value(self._read(check_key(key)))

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        """Waits until all keys exist in the store, and returns their values.

        This method reads the keys repeatedly, and does not call torch's own `wait`. Torch's `wait` treats deleted keys
        as present, blocks all other calls on its connection, and prints a warning after a timeout. `timeout`: in
        seconds; OpTimeout when this time has passed.
        """
        names = check_keys(keys)
        deadline = Deadline(timeout)
        pause = _SHORTEST
        while True:
            seen = [_value(self._read(name)) for name in names]
            found = [value for value in seen if value is not None]
            if len(found) == len(names):
                return found
            if deadline.passed:
                absent = [name for name, value in zip(names, seen, strict=True) if value is None]
                raise missing(repr(self), absent, deadline.elapsed())
            time.sleep(min(pause, deadline.left()))
            pause = min(2 * pause, _LONGEST)

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        name, more = check_key(key), check_amount(amount)
        check_timeout(timeout)
        while True:
            old = self._read(name)
            total = count(repr(self), name, _value(old), more)
            if self._replace(name, old, _new(str(total).encode())):
                return total

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        name = check_key(key)
        wanted = None if expected is None else _checked(expected)
        data = None if value is None else _checked(value)
        check_timeout(timeout)
        while True:
            old = self._read(name)
            if _value(old) != wanted or wanted == data:
                return _value(old)
            if self._replace(name, old, _new(data)):
                return data

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        names = check_keys(keys)
        check_timeout(timeout)
        return sum(self._remove(name) for name in names)

    def close(self) -> None:
        self._closed = True

    def _remove(self, name: str) -> bool:
        while True:
            old = self._read(name)
            if _value(old) is None:
                return False
            if self._replace(name, old, _new(None)):
                return True

    def _read(self, name: str) -> bytes:
        return self._compare(name, _NEVER, _NEVER)

    def _replace(self, name: str, old: bytes, new: bytes) -> bool:
        """If the key `name` still has the value `old`, replace it by `new`; returns whether that was so.

        `old` is `_NEVER` for a missing key: torch creates the key if the expected value is b"".
        """
        return self._compare(name, b"" if old == _NEVER else old, new) == new

    def _compare(self, name: str, expected: bytes, desired: bytes) -> bytes:
        return bytes(self._call(lambda: self._store.compare_set(name, expected, desired)))

    def _call(self, action: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError(f"{self!r} was closed")
        start = time.monotonic()
        try:
            return action()
        except CollectiveError:  # is a RuntimeError, too
            raise
        except RuntimeError as error:  # errors of torch's stores
            raise StoreError(f"{self!r} failed after {time.monotonic() - start:.1f} s: {error}") from error


def _checked(value: object) -> bytes:
    data = check_value(value)
    if len(data) > MOST:
        raise ValueError(f"a value in torch's stores is at most {MOST} bytes, not {len(data)}")
    return data


def _new(value: bytes | None) -> bytes:
    return (_DELETED if value is None else _VALUE) + os.urandom(_NUMBER) + (value or b"")


def _value(raw: bytes) -> bytes | None:
    return raw[1 + _NUMBER :] if raw.startswith(_VALUE) else None
