"""The interface between a communicator and a package that runs collectives by itself.

Invariant: an engine gets arrays without a copy. The communicator orders and numbers the calls, compares them between
ranks, sets deadlines, and reports an engine's error to all ranks. An engine only does the work of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from collectives.arrays.memory import Memory


class Collective(NamedTuple):
    """One call of a collective: its name, such as "allreduce", and the arguments that are the same on all ranks.

    `dtype` and `shape` describe the input array. `op` is "" for a collective without a reduction, and `root` is -1
    for a collective without a root.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    op: str = ""
    root: int = -1


class Ranks(Protocol):
    """A group of ranks as an engine sees it during a call: this rank, the group's size, and a few collectives.

    An engine is an object, often from another package, that runs whole collectives. By the collectives of this class,
    the engine's objects on all ranks exchange data of their own. Every rank has to call these collectives in the same
    order. They raise the same errors as the methods of a communicator, and OpTimeout at the deadline of the call that
    the engine runs.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the collective that the engine runs. The engine must not wait longer."""

    def gather(self, x: Any, root: int = 0) -> Any:
        """As `Communicator.gather`."""

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """As `Communicator.broadcast`."""

    def allgather(self, x: Any) -> Any:
        """As `Communicator.allgather`."""


class Task(Protocol):
    """One call that an engine runs."""

    def run(self, x: Any, out: Any, ranks: Ranks) -> Any:
        """Run one collective and wait until it is complete: `x` is the input, and `out` the array for the result.

        Returns `out`, or a new array if `out` is None. By the collectives of `ranks`, the engine's objects on all ranks
        can exchange data of their own. May raise any error, which the communicator then reports to all ranks.
        """


class LateTask(Protocol):
    """One collective that an engine starts at once, and completes later, on any thread."""

    def start(self, x: Any, out: Any, ranks: Ranks, complete: Callable[[Any, BaseException | None], None]) -> None:
        """Begin one collective and return at once; `x` is the input, and `out` the array for the result, or None.

        When the collective has ended, the engine calls `complete(result, None)` or `complete(None, error)` once, on any
        thread. Until then `x` and `out` stay valid, and no other code changes them. By the collectives of `ranks`, the
        engine's objects on all ranks can exchange data of their own. Only one thread at a time may use `ranks`.
        """


class Engine(Protocol):
    """An object, often of another package, that runs whole collectives. Several threads may use it at once."""

    @property
    def name(self) -> str:
        """The engine's name: lower case letters, digits, "_" and "-". Users pass it as `algorithm=`."""

    def accepts(self, collective: str, nbytes: int, memory: Memory, size: int) -> str | None:
        """Returns in a few words why this engine runs a call with these arguments; None if it does not run the call.

        `nbytes`: the size of the call's array. `size`: the number of ranks. All ranks must get the same answer. So the
        answer may depend on `collective`, `nbytes`, `memory.kind` and `size`, but not on `memory.device`.
        """

    def collective(self, call: Collective, memory: Memory) -> Task | LateTask:
        """Returns an object that runs the collective `call` on arrays in `memory`.

        Raises TypeError or ValueError, on every rank, if the engine does not support the dtype or op of `call`.
        """
