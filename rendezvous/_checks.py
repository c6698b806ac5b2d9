"""Deadlines and the argument checks that all stores share.

Invariant: nothing here has side effects; a wrong argument raises ValueError or TypeError before a store has sent or
written anything.
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Iterable, Sequence
from typing import TypeVar

from collectives.native.errors import OpTimeout, StoreError

T = TypeVar("T")

MAX_KEY = 512  # bytes of UTF-8
MAX_VALUE = 16 << 20  # bytes
DEFAULT_TIMEOUT = 30.0  # seconds
GRACE = 1.0  # seconds by which a call may overrun its deadline while it waits for a server's answer

_INT64 = range(-(1 << 63), 1 << 63)
_DIGITS = 20  # characters of the longest 64-bit integer, its sign included


class Deadline:
    """The time limit of a call that may block: how many seconds are left, and how many have passed since its start.

    Times are in seconds of Python's monotonic clock.
    """

    __slots__ = ("_end", "_start")

    def __init__(self, timeout: float) -> None:
        self._start = time.monotonic()
        self._end = self._start + check_timeout(timeout)

    def left(self) -> float:
        """Seconds that remain until the deadline, never below 0."""
        return max(0.0, self._end - time.monotonic())

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._end


def check_timeout(timeout: object, name: str = "timeout") -> float:
    """Return `timeout` as a float, in seconds, after checking that it is finite and not negative.

    `name` is the name of the argument, for error messages. Raises: ValueError if `timeout` is negative or not finite;
    TypeError if it is no number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"{name} must be a number of seconds, not {type(timeout).__name__}")
    seconds = float(timeout)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name} must be a finite number of seconds, zero or more, not {seconds}")
    return seconds


def check_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a store key is a str, not {type(key).__name__}")
    length = len(key.encode("utf-8", "surrogatepass"))
    if not 0 < length <= MAX_KEY or "\0" in key or not key.isprintable():
        raise ValueError(f"a store key is 1 to {MAX_KEY} bytes of printable text, not {key[:80]!r} ({length} bytes)")
    return key


def check_keys(keys: str | Sequence[str]) -> list[str]:
    """Return `keys` as a list, after checking that each is a valid key of a store. A single str is one key.

    Raises: TypeError for a key that is no str; ValueError for a key that is empty, too long or not printable.
    """
    if isinstance(keys, str):
        return [check_key(keys)]
    if not isinstance(keys, Iterable):
        raise TypeError(f"store keys are a sequence of str, not {type(keys).__name__}")
    return [check_key(key) for key in keys]


def check_value(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a store value is bytes, not {type(value).__name__}")
    data = bytes(value)
    if len(data) > MAX_VALUE:
        raise ValueError(f"a store value is at most {MAX_VALUE} bytes, not {len(data)}")
    return data


def check_amount(amount: object) -> int:
    if isinstance(amount, bool) or not isinstance(amount, numbers.Integral):
        raise TypeError(f"the amount to add is an int, not {type(amount).__name__}")
    if int(amount) not in _INT64:
        raise ValueError(f"the amount to add must fit 64 bits, not {amount}")
    return int(amount)


class Unreachable(StoreError):
    """The key-value store did not answer, but may answer later, for example because its server is restarting.

    A write that raised this error may have taken effect nevertheless.
    """


class NotANumber(StoreError, ValueError):
    """`Store.add` failed: the stored value is no integer, or the sum does not fit into 64 bits.

    The error is a ValueError. It is also a StoreError, since another program may have written the value.
    """


def count(store: str, key: str, value: bytes | None, amount: int) -> int:
    """Return the integer that is stored in `value`, plus `amount`. A `value` of None counts as 0.

    `store` and `key` are for error messages. Raises: NotANumber if `value` is no integer, or if the sum does not fit
    into 64 bits.
    """
    where = f"{store}: " if store else ""
    try:
        number = int(value) if value is not None and len(value) <= _DIGITS else None
    except ValueError:
        number = None
    if value is None:
        number = 0
    elif number is None or str(number).encode() != value:
        raise NotANumber(f"{where}key {key!r} holds no integer, so nothing can be added to it")
    if number + amount not in _INT64:
        raise NotANumber(f"{where}adding {amount} to key {key!r}, now {number}, would not fit 64 bits")
    return number + amount


def parts(keys: Sequence[T], size: int) -> list[Sequence[T]]:
    """Divide `keys` into lists of at most `size` keys, in the same order.

    Return one empty list if there are no keys.
    """
    return [keys[start : start + size] for start in range(0, max(len(keys), 1), size)]


def missing(store: str, keys: Sequence[str], elapsed: float) -> OpTimeout:
    """Return the error to raise when `Store.wait` reaches its deadline and `keys` do not exist yet.

    `store` is the store's name, for the message. `elapsed` is how long the call has waited, in seconds.
    """
    shown = ", ".join(repr(key[:200]) for key in keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
    noun = "key" if len(keys) == 1 else "keys"
    return OpTimeout(f"{store}: {len(keys)} {noun} did not appear within {elapsed:.1f} s: {shown}")
