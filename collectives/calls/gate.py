"""Lets one thread at a time use a communicator, until it is closed, and only in the process that made it.

Invariant: entering the gate costs one native call. If entering fails, Python code then finds the reason.
"""

from __future__ import annotations

import os
import threading
import weakref
from copy import copy
from typing import NoReturn

from collectives.native._engine import Latch
from collectives.native.errors import Aborted, CollectiveError


class Gate:
    """Lets only one thread at a time make calls on a communicator; calls of other threads raise RuntimeError at once.

    Python code uses `with gate:`. C++ code calls `latch.acquire()`, `gate.refuse()` and `latch.release()` instead.
    """

    __slots__ = ("__weakref__", "_cause", "_pid", "block", "latch", "name")

    def __init__(self, name: str) -> None:
        self.latch = Latch()
        self.name = name
        self._cause: CollectiveError | None = None
        self._pid = os.getpid()
        self.block: int | None = None  # the thread that is inside a `group()` block, which keeps the latch meanwhile
        _gates.add(self)

    def __enter__(self) -> None:
        if not self.latch.acquire():
            self.refuse()

    def __exit__(self, *_: object) -> None:
        self.latch.release()

    def refuse(self) -> NoReturn:
        """Raise the reason why no call can be made now."""
        self.check()
        self.check_outside()
        raise RuntimeError(
            f"communicator {self.name!r}: another thread is inside one of its calls; the order of calls has to be "
            "the same on every rank, so give each thread a communicator of its own: comm.dup()"
        )

    def check(self) -> None:
        """Raise if no call can be made any more."""
        if self._cause is not None:
            raise copy(self._cause)

    def check_outside(self) -> None:
        """Raises RuntimeError if this thread is inside a `group()` block, where it cannot wait for other ranks."""
        if self.block == threading.get_ident():
            raise RuntimeError(
                f"communicator {self.name!r}: inside a group() block only calls whose arrays have known lengths can be "
                "made; plans, split, dup, synchronize, another group(), and calls that agree on lengths first have to "
                "wait for other ranks: make them before or after the block"
            )

    def break_with(self, cause: CollectiveError) -> None:
        """Refuse all later calls, which raise `cause`."""
        self._shut(cause)

    def close(self) -> None:
        if self._cause is None:
            self._shut(Aborted(f"communicator {self.name!r} is closed"))

    def _shut(self, cause: CollectiveError) -> None:
        self._cause = cause
        self.latch.shut()

    def _forked(self) -> None:
        if self._cause is None:
            self._shut(
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
