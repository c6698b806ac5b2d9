"""Reading environment variables.

Invariant: an empty variable counts as unset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ._checks import check_timeout

Environment: TypeAlias = Mapping[str, str]


def get(env: Environment, key: str) -> str | None:
    """The variable's value; None if it is not set."""
    return env.get(key) or None


def integer(env: Environment, key: str) -> int | None:
    """Return the value of the environment variable `key` as an int, or None if it is not set.

    Raises: ValueError unless the value is an integer, zero or more.
    """
    text = get(env, key)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise ValueError(f"{key}={text[:80]!r} is not a number, zero or more")
    return int(text)


def seconds(env: Environment, key: str) -> float | None:
    """Return the value of the environment variable `key`, a number of seconds, as a float; None if it is not set.

    Raises: ValueError unless the value is a finite number, zero or more.
    """
    text = get(env, key)
    if text is None:
        return None
    try:
        return check_timeout(float(text), key)
    except ValueError:
        raise ValueError(f"{key}={text[:80]!r} is not a finite number of seconds, zero or more") from None
