"""Cases that a process runs by their names, and what they expect of errors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import pytest


class Cases:
    """A decorator that keeps functions by their names."""

    def __init__(self) -> None:
        self._all: Final[dict[str, Callable[[], None]]] = {}

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self._all[function.__name__] = function
        return function

    def run(self, *names: str) -> None:
        for name in names:
            begun = time.monotonic()
            self._all[name]()
            print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)


@contextmanager
def raises(kind: type[BaseException] | tuple[type[BaseException], ...], *parts: str) -> Iterator[None]:
    """The block raises that error, whose text has these parts."""
    with pytest.raises(kind) as caught:
        yield
    for part in parts:
        assert part in str(caught.value), f"{part!r} is not in {caught.value}"


def refused(kind: type[Exception], *parts: str) -> AbstractContextManager[None]:
    """`raises` of an error that names this rank."""
    return raises(kind, f"rank {os.environ['COLLECTIVES_RANK']}", *parts)
