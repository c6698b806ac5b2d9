"""The keys and values of a store that lives in one process, and watches: readers that wait for keys to appear.

Invariant: a table is used under one lock or by one thread. The table never blocks. It calls the function `wake` of a
watch at most once, at the moment when the last key that this watch waits for appears.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ._checks import count


class Watch:
    """The store keys for which one reader still waits, and the function `wake` to call when all of them exist."""

    __slots__ = ("keys", "wake")

    def __init__(self, keys: set[str], wake: Callable[[], None]) -> None:
        self.keys = keys
        self.wake = wake


class Table:
    """The keys and values of a store that lives in one process: a dict that notifies readers that wait for keys."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._watches: dict[str, dict[Watch, None]] = {}  # in the order in which they were added
        self.nbytes = 0  # bytes of all keys and values

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self._values]

    def set(self, key: str, value: bytes) -> None:
        self.nbytes -= self.weight(key)
        self._values[key] = value
        self.nbytes += self.weight(key)
        for watch in self._watches.pop(key, ()):
            watch.keys.discard(key)
            if not watch.keys:
                watch.wake()

    def add(self, key: str, amount: int, store: str = "") -> int:
        """Add `amount` to the integer stored under `key`, as `Store.add` does; return the sum.

        `store` is the store's name, for the error message. Raises: NotANumber if the value is no integer.
        """
        total = count(store, key, self._values.get(key), amount)
        self.set(key, str(total).encode())
        return total

    def compare_set(self, key: str, expected: bytes | None, value: bytes | None) -> bytes | None:
        current = self._values.get(key)
        if current != expected:
            return current
        if value is None:
            self.delete([key])
        else:
            self.set(key, value)
        return value

    def delete(self, keys: Sequence[str]) -> int:
        found = 0
        for key in keys:
            self.nbytes -= self.weight(key)
            found += self._values.pop(key, None) is not None
        return found

    def watch(self, keys: Sequence[str], wake: Callable[[], None]) -> Watch:
        """Arrange that `wake` is called once, when the last of the missing store keys `keys` is created.

        An earlier key may have been deleted again by then. So after the call of `wake`, the reader must look up all
        keys, and call `watch` again if a key is missing. Return an object to pass to `unwatch`, which cancels the call.
        """
        watch = Watch(set(keys), wake)
        for key in watch.keys:
            self._watches.setdefault(key, {})[watch] = None
        return watch

    def unwatch(self, watch: Watch) -> None:
        for key in watch.keys:
            watches = self._watches.get(key, {})
            watches.pop(watch, None)
            if not watches:
                self._watches.pop(key, None)
        watch.keys = set()

    def weight(self, key: str) -> int:
        """Return the length of `key` plus the length of its value, in bytes; 0 if the key does not exist."""
        value = self._values.get(key)
        return 0 if value is None else len(key) + len(value)
