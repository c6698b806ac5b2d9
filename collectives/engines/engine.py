"""What an engine is: the interface between a communicator and a package that runs collectives by itself.

Invariant: an engine sees arrays where they lie. The communicator owns order, sequence numbers, the comparison of calls,
deadlines and the first cause; an engine only does the work of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from collectives.arrays.memory import Memory


class Collective(NamedTuple):
    """A call: its name, "allreduce" for example, and what all ranks give alike.

    `dtype` and `shape` are those of `x`; `op` is "" and `root` -1 where the collective has none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    op: str = ""
    root: int = -1


class Ranks(Protocol):
    """The ranks of the call, and messages between them that an engine may use inside of it.

    Each method is called by every rank of the group in the same order, and ends with the call's deadline. They raise
    what the communicator's calls raise.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def seconds_left(self) -> float:
        """Until the call's deadline. An engine that waits for anything else has to end by then."""

    def gather(self, x: Any, root: int = 0) -> Any:
        """As `Communicator.gather`."""

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """As `Communicator.broadcast`."""

    def allgather(self, x: Any) -> Any:
        """As `Communicator.allgather`."""


class Task(Protocol):
    """One call that an engine runs."""

    def run(self, x: Any, out: Any, ranks: Ranks) -> Any:
        """Run it on this thread; returns the result, `out` where that is given. May raise anything."""


class LateTask(Protocol):
    """One call that completes from another thread."""

    def start(self, x: Any, out: Any, ranks: Ranks, complete: Callable[[Any, BaseException | None], None]) -> None:
        """Begin, and return at once. `complete(result, None)` or `complete(None, error)` is called once, by any thread.

        `ranks` may be used until then, by one thread at a time. `x` and `out` stay as they are until then.
        """


class Engine(Protocol):
    """Runs whole collectives. All methods may be called by several threads at once."""

    @property
    def name(self) -> str:
        """Lower case letters, digits, "_" and "-": what `algorithm=` and `explain` call it."""

    def accepts(self, collective: str, nbytes: int, memory: Memory, size: int) -> str | None:
        """Why it runs such calls, in a few words, or None for those that it does not run.

        `nbytes` are those of `x`, `size` the number of ranks. The answer is the same on every rank: it depends on
        nothing else, and of `memory` only on its kind.
        """

    def collective(self, call: Collective, memory: Memory) -> Task | LateTask:
        """What runs this call. Raises TypeError and ValueError for a dtype or op that it cannot do, on every rank."""
