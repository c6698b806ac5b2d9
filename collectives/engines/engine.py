"""The interface between a communicator and a package that runs collectives by itself.

Invariant: an engine gets arrays without a copy. The communicator orders and numbers the calls, compares them between
ranks, sets deadlines, and reports an engine's error to all ranks. An engine only does the work of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from collectives.arrays.memory import Memory


class Collective(NamedTuple):
    """A call: its name, "allreduce" for example, and the arguments that are the same on all ranks.

    `dtype` and `shape` are those of the call's array `x`. `op` is "" for a collective without a reduction, and `root`
    is -1 for a collective without a root.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    op: str = ""
    root: int = -1


class Ranks(Protocol):
    """What an engine, an object that runs whole collectives, may use during a call: rank, size, and a few collectives.

    The collectives are for the engine's own messages. Every rank has to call them in the same order. They end at the
    latest at the deadline of the call that the engine runs, and raise the same errors as the methods of a communicator.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the call that the engine runs. All waits of the engine have to end by then."""

    def gather(self, x: Any, root: int = 0) -> Any:
        """As `Communicator.gather`."""

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """As `Communicator.broadcast`."""

    def allgather(self, x: Any) -> Any:
        """As `Communicator.allgather`."""


class Task(Protocol):
    """One call that an engine runs."""

    def run(self, x: Any, out: Any, ranks: Ranks) -> Any:
        """Run the communicator's call on the calling thread: `x` is its input, and `out` the array for its result.

        Returns `out`, or a new array if `out` is None. May raise any error.
        """


class LateTask(Protocol):
    """One call that completes from another thread."""

    def start(self, x: Any, out: Any, ranks: Ranks, complete: Callable[[Any, BaseException | None], None]) -> None:
        """Begin the call, and return at once.

        At the end of the call, the engine calls `complete(result, None)` or `complete(None, error)` once, on any
        thread. Until then `x` and `out` stay valid, and no other code changes them. Only one thread at a time may use
        `ranks`.
        """


class Engine(Protocol):
    """An object that runs whole collectives. Several threads may call its methods at once."""

    @property
    def name(self) -> str:
        """The engine's name, as in `algorithm=` and `explain`: lower case letters, digits, "_" and "-"."""

    def accepts(self, collective: str, nbytes: int, memory: Memory, size: int) -> str | None:
        """The reason, in a few words, why the engine runs calls with these arguments; None if it does not run them.

        `nbytes`: the size of the call's array. `size`: the number of ranks. The result has to be the same on every
        rank, so it may depend only on `collective`, `nbytes`, `memory.kind` and `size`, but not on `memory.device`.
        """

    def collective(self, call: Collective, memory: Memory) -> Task | LateTask:
        """The task that runs `call`. Every rank raises TypeError or ValueError if the dtype or op is unsupported."""
