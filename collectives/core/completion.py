"""Completing several calls at once: the methods of a communicator that issue calls together, or wait for all.

Invariant: nothing here adds to what calls do; it only says when they are issued and when they are complete.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from collectives.calls.runner import Runner, Seconds


class Completion:
    """A part of `Communicator`, which documents what holds for all its calls."""

    _runner: Runner

    def group(self) -> AbstractContextManager[None]:
        """Calls made in the block are issued together when it ends, and are complete when it has ended.

            with comm.group():
                comm.send(x, (comm.rank + 1) % comm.size)
                comm.recv(y, (comm.rank - 1) % comm.size)

        All are under way before any has to be complete: ranks may all send before they receive, and messages with
        different peers may be listed in any order. Calls that read or write the same array do so in the listed
        order. Collectives keep their order, and what is sent before a collective is received before it, as outside.
        Other ranks need not make the matching calls in a block.

        A call checks its arguments at once and returns the array that holds its result when the block has ended.
        Until then do not change or read the arrays given to it. `_async` twins start at the end of the block too, and
        their Works are done then. The block takes at most the longest of its calls' timeouts. It raises the first
        error of its calls. Where the block itself raises, none of its calls is issued.

        RuntimeError for what has to wait in the block: plans, split, dup, synchronize, another group(), waiting for a
        Work of the block, and calls that agree on lengths first (scatter, allgatherv, gatherv, scatterv, alltoallv).
        ValueError for an `op` that is a function, and for an array on a device without `out`.
        """
        return self._runner.together()

    def synchronize(self, stream: Any = None, timeout: Seconds = None) -> None:
        """Return when all that this rank has started in the background is complete; raise the first error of these.

        An error is raised once, whether or not somebody has waited for its Work; one that broke the communicator is
        raised each time. `timeout` in seconds; None waits until each operation's own deadline. When it passes,
        OpTimeout is raised and the operations go on.

        `stream`: that of a device on which operations are ordered. ValueError where it is given, since all operations
        of this communicator are complete on the host. RuntimeError inside `group()`.
        """
        if stream is not None:
            raise ValueError("stream is given, but no operation of this communicator is ordered by a stream")
        self._runner.synchronize(timeout)
