"""The interface between a communicator and a package that runs collectives by itself.

Invariant: an engine gets arrays without a copy. The communicator is responsible for order, sequence numbers, the
comparison of calls, deadlines and the first error; an engine only does the work of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from collectives.arrays.memory import Memory


class Collective(NamedTuple):
    """A call: its name, "allreduce" for example, and the arguments that are the same on all ranks.

    `dtype` and `shape` are those of `x`; `op` is "" and `root` -1 if the collective has none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    op: str = ""
    root: int = -1


class Ranks(Protocol):
    """The ranks of the call, and messages between them that an engine may use inside it.

    Each method is called by every rank of the group in the same order, and ends at the call's deadline. The methods
    raise the same errors as those of a communicator.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def seconds_left(self) -> float:
        """Seconds until the call's deadline. Waits of the engine itself, outside these methods, have to end by then."""

    def gather(self, x: Any, root: int = 0) -> Any:
        """As `Communicator.gather`."""

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """As `Communicator.broadcast`."""

    def allgather(self, x: Any) -> Any:
        """As `Communicator.allgather`."""


class Task(Protocol):
    """One call that an engine runs."""

    def run(self, x: Any, out: Any, ranks: Ranks) -> Any:
        """Run the call on this thread; returns the result, which is `out` if one is given. May raise any error."""


class LateTask(Protocol):
    """One call that completes from another thread."""

    def start(self, x: Any, out: Any, ranks: Ranks, complete: Callable[[Any, BaseException | None], None]) -> None:
        """Begin, and return at once. `complete(result, None)` or `complete(None, error)` is called once, by any thread.

        Until `complete` is called, `x` and `out` stay as they are, and one thread at a time may use `ranks`.
        """


class Engine(Protocol):
    """Runs whole collectives. All methods may be called by several threads at once."""

    @property
    def name(self) -> str:
        """Lower case letters, digits, "_" and "-": the engine's name in `algorithm=` and in the text of `explain`."""

    def accepts(self, collective: str, nbytes: int, memory: Memory, size: int) -> str | None:
        """The reason why the engine runs such calls, in a few words, or None if it does not run them.

        `nbytes` is the size of `x`, `size` the number of ranks. The result has to be the same on every rank: it depends
        on the arguments only, and on `memory.kind`, not on `memory.device`.
        """

    def collective(self, call: Collective, memory: Memory) -> Task | LateTask:
        """The task for this call. Raises TypeError and ValueError for an unsupported dtype or op, on every rank."""
