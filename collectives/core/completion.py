"""Completing several calls at once: the methods of a communicator that issue calls together, or wait for all.

Invariant: nothing here changes the calls themselves, only when they are issued and when they are complete.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from collectives.calls.runner import Runner, Seconds


class Completion:
    """A part of `Communicator`, whose docstring applies to all calls."""

    _runner: Runner

    def group(self) -> AbstractContextManager[None]:
        """Calls made in the block are issued together when it ends, and are complete when it has ended.

            with comm.group():
                comm.send(x, (comm.rank + 1) % comm.size)
                comm.recv(y, (comm.rank - 1) % comm.size)

        All calls are started before any of them has to be complete: ranks may all send before they receive, and
        messages with different peers may be listed in any order. Calls that read or write the same array do so in the
        listed order. Collectives keep their order, and a message that is sent before a collective is received before
        it. Other ranks may make the matching calls outside a block.

        A call checks its arguments at once and returns the array that contains its result when the block has ended.
        Until then do not change or read the arrays passed to it. `_async` variants start at the end of the block too,
        and their Works are done then. The block takes at most the longest of its calls' timeouts. It raises the first
        error of its calls. If the body of the block raises, none of its calls is issued.

        RuntimeError for calls that would have to wait inside the block: plans, split, dup, synchronize, another
        group(), waiting for a Work of the block, and calls that exchange lengths first (scatter, allgatherv, gatherv,
        scatterv, alltoallv). ValueError for an `op` that is a function, and for an array on a device without `out`.
        """
        return self._runner.together()

    def synchronize(self, stream: Any = None, timeout: Seconds = None) -> None:
        """Return when all operations that this rank started in the background are complete; raise their first error.

        An error is raised once, whether or not its Work has been waited for; an error that broke the communicator is
        raised each time. `timeout` in seconds; None waits until each operation's own deadline. When it passes,
        OpTimeout is raised and the operations continue. `stream`: a stream of a device on which operations are ordered.
        ValueError if a stream is given, since all operations of this communicator complete on the host. RuntimeError
        inside `group()`.
        """
        if stream is not None:
            raise ValueError("stream is given, but no operation of this communicator is ordered by a stream")
        self._runner.synchronize(timeout)
