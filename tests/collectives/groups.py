"""Groups of ranks as threads of the test's process, and what they must not leave behind.

Invariant: all ranks have ended, and their communicators are closed, when `ranks` returns or raises.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import collectives
from tests.rendezvous.threads import Outcome, together
from tests.waiting import eventually

T = TypeVar("T")
_names = itertools.count()


def outcomes(
    size: int, body: Callable[[collectives.Communicator], T], *, transport: str = "inproc", **options: Any
) -> list[Outcome[T]]:
    """What became of `body` on every rank of a new group."""
    url = f"memory://groups-{next(_names)}"

    def rank(number: int) -> T:
        settings = {"timeout": 60.0, "join_timeout": 60.0, **options}  # for a loaded machine
        with collectives.init(url, rank=number, size=size, transport=transport, **settings) as comm:
            return body(comm)

    return together([lambda number=number: rank(number) for number in range(size)])  # type: ignore[misc]


def ranks(
    size: int, body: Callable[[collectives.Communicator], T], *, transport: str = "inproc", **options: Any
) -> list[T]:
    """What `body` returns on every rank of a new group; its first error where there is one."""
    found = outcomes(size, body, transport=transport, **options)
    return [outcome.value for outcome in found]


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fails where descriptors or threads are more at the end than at the beginning."""
    gc.collect()
    descriptors, threads = _descriptors(), threading.active_count()
    native = _native_threads()
    yield
    gc.collect()
    # A communicator that nobody holds may be closed by a thread of its own.
    assert eventually(lambda: _descriptors() <= descriptors), f"left open: {sorted(_descriptors() - descriptors)}"
    assert threading.active_count() == threads, threading.enumerate()
    # The kernel lists a thread for a moment after it has been joined; also one that had ended before.
    assert eventually(lambda: _native_threads() <= native), f"{_native_threads()} threads, not {native}"


def _descriptors() -> set[tuple[str, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:
            continue  # that of the listing itself
    return found


def _native_threads() -> int:
    return len(os.listdir("/proc/self/task"))
