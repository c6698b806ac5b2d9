"""Who may use a communicator now: one thread at a time, until it is closed, in the process that made it.

Invariant: entering costs one lock operation while all is well; what is wrong is put in the lock's place.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from native.errors import Aborted, CollectiveError


class Lock(Protocol):
    def acquire(self, blocking: bool, /) -> bool: ...
    def release(self) -> None: ...


class Refusal:
    """Stands in the lock's place when a communicator can't be used any more: `acquire` raises."""

    def __init__(self, error: CollectiveError) -> None:
        self._error = error

    def acquire(self, _blocking: bool, /) -> bool:
        raise type(self._error)(str(self._error))

    def release(self) -> None: ...


class Gate:
    """`lock.acquire(False)` before each call, `lock.release()` of the same lock after it."""

    __slots__ = ("__weakref__", "_pid", "lock", "name")

    def __init__(self, name: str) -> None:
        self.lock: Lock = threading.Lock()
        self.name = name
        self._pid = os.getpid()
        _gates.add(self)

    def busy(self) -> RuntimeError:
        """What to raise where the lock is taken."""
        return RuntimeError(
            f"communicator {self.name!r}: another thread is inside one of its calls; the order of calls has to be "
            "the same on every rank, so give each thread a communicator of its own: comm.dup()"
        )

    def check(self) -> None:
        """Raise if no call can be made any more."""
        if isinstance(self.lock, Refusal):
            self.lock.acquire(False)

    def close(self) -> None:
        self.lock = Refusal(Aborted(f"communicator {self.name!r} is closed"))

    def _forked(self) -> None:
        if not isinstance(self.lock, Refusal):
            self.lock = Refusal(
                CollectiveError(
                    f"communicator {self.name!r} belongs to process {self._pid}, from which this one was forked: "
                    "call collectives.init() in the child"
                )
            )


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def _after_fork() -> None:
    for gate in list(_gates):
        gate._forked()


os.register_at_fork(after_in_child=_after_fork)
