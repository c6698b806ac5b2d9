"""Ranks that are threads of a few processes, or a process each, to measure how groups form between processes.

Invariant: the processes are forked from one that has imported the library, so no measured time includes imports. They
end when the `with` statement ends.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from collectives.bench.rank_threads import RankThreads
from collectives.native.errors import CollectiveError

T = TypeVar("T")

_PRELOADED: Final = ("collectives", "collectives.bench.rank_processes", "collectives.bench.meeting_turns")
_END: Final = 10.0  # seconds for a process to end


class Left(Protocol):
    """The objects that a turn leaves open on the ranks of a process, until the turn has ended on all ranks."""

    def close(self, servers: bool) -> None:
        """Close what other ranks do not use; with `servers`, close the servers of other ranks."""


Turn = Callable[..., tuple[T, Left]]  # (threads, number of the first rank, arguments): the result, and what is left


class RankProcesses:
    """`processes` processes that together have `ranks` ranks, each a thread. Use it in a `with` statement.

    With one process, the ranks are threads of the calling process.
    """

    def __init__(self, ranks: int, processes: int, preloaded: Sequence[str] = ()) -> None:
        """Start the processes. `preloaded`: modules to import before the processes are forked.

        Raises ValueError if there are more processes than ranks.
        """
        if not 1 <= processes <= ranks:
            raise ValueError(f"{ranks} ranks cannot be in {processes} processes")
        self.ranks: Final = ranks
        self.processes: Final = processes
        self._threads: RankThreads | None = None
        self._connections: list[Connection] = []
        self._children: list[Any] = []
        if processes == 1:
            self._threads = RankThreads(ranks)
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*_PRELOADED, *preloaded])
        bounds = [number * ranks // processes for number in range(processes + 1)]
        try:
            for first, end in pairwise(bounds):
                ours, theirs = context.Pipe()
                child = context.Process(target=_serve, args=(theirs, first, end - first), daemon=True)
                child.start()
                theirs.close()
                self._connections.append(ours)
                self._children.append(child)
            for connection in self._connections:
                self._answer(connection)
        except BaseException:
            self._end()
            raise

    def run(self, turn: Turn[T], *arguments: Any) -> list[T]:
        """Run `turn` in all processes at once; return the results, by process.

        When the turn has ended in all processes, what it has left is closed, servers last. `turn` is a function of a
        module, and `arguments` and results can be pickled. Raises the first error of `turn`, or CollectiveError.
        """
        if self._threads is not None:
            found, left = turn(self._threads, 0, *arguments)
            left.close(servers=False)
            left.close(servers=True)
            return [found]
        results: list[T] = []
        errors: list[str] = []
        for message in ((turn, *arguments), False, True):
            for connection in self._connections:
                connection.send(message)
            for connection in self._connections:
                try:
                    answer = self._answer(connection)
                    if message not in (False, True):
                        results.append(answer)
                except CollectiveError as error:
                    errors.append(str(error))
        if errors:
            raise CollectiveError(errors[0])
        return results

    @staticmethod
    def _answer(connection: Connection) -> Any:
        try:
            kind, value = connection.recv()
        except (EOFError, OSError) as error:
            raise CollectiveError("a process of the ranks has ended") from error
        if kind == "error":
            raise CollectiveError(str(value))
        return value

    def _end(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(None)
            connection.close()
        for child in self._children:
            child.join(_END)
            if child.is_alive():
                child.kill()
                child.join()
            child.close()

    def __enter__(self) -> RankProcesses:
        if self._threads is not None:
            self._threads.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._threads is not None:
            self._threads.__exit__(kind, value, trace)
        else:
            self._end()


def _serve(connection: Connection, first: int, ranks: int) -> None:
    """Runs in a process of ranks: runs turns until the parent ends it."""
    left: Left | None = None
    gc.freeze()  # the garbage collector must not look at all imported modules in each process
    with RankThreads(ranks) as threads:
        connection.send(("done", None))
        while (message := connection.recv()) is not None:
            try:
                if message in (False, True):
                    if left is not None:
                        left.close(servers=message)
                    connection.send(("done", None))
                else:
                    turn, *arguments = message
                    left = None
                    found, left = turn(threads, first, *arguments)
                    connection.send(("done", found))
            except BaseException as error:
                text = traceback.format_exception_only(error)[-1].strip()
                connection.send(("error", text[:2000]))
