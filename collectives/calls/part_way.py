"""Calls that consist of several operations, and end after some of them: by a signal, or because memory is full.

Invariant: no operation of such a call meets one of another call on other ranks. The communicator is broken on all ranks
instead, and they learn why.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final

from collectives.arrays.cuda import NoRoom
from collectives.native import _engine
from collectives.native.errors import OpTimeout


class PartWay:
    """While it is open, an error breaks the communicator if some of a call's operations have begun, and not all.

    If this rank has no memory for the call, the error also does so if none has begun: other ranks would wait for it.
    `begun`: how many of the `count` operations, which end by themselves then. `what`: these operations, for the error.
    """

    __slots__ = ("_count", "_group", "_name", "_rank", "_what", "begun")

    def __init__(self, group: _engine.Group, rank: int, name: str, count: int, what: str = "operations") -> None:
        self._group: Final = group
        self._rank: Final = rank
        self._name: Final = name
        self._what: Final = what
        self._count: Final = count
        self.begun = 0

    def __enter__(self) -> PartWay:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is None or self.begun == self._count or (self.begun == 0 and not isinstance(error, NoRoom)):
            return
        text = str(error) or type(error).__name__
        after = f"after {self.begun} of {self._count} {self._what} had begun"
        kind = "OpTimeout" if isinstance(error, OpTimeout) else "Aborted"
        self._group.abandon(kind, f"{self._name} ended on rank {self._rank} {after}: {text}")
