"""Methods of a communicator that issue several calls together, or wait for all calls in the background.

Invariant: these methods decide when calls are issued and when they are complete, and change nothing else in a call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from collectives.calls.runner import Runner, Seconds


class Completion:
    """A base class of `Communicator`; the docstring of `Communicator` describes what all calls have in common."""

    _runner: Runner

    def group(self) -> AbstractContextManager[None]:
        """Returns a context manager: calls in its block are issued together at the end, which waits for all of them.

            with comm.group():
                comm.send(x, (comm.rank + 1) % comm.size)
                comm.recv(y, (comm.rank - 1) % comm.size)

        All calls are started before any of them has to be complete: ranks may all send before they receive, and
        messages with different peers may be listed in any order. Calls that read or write the same array do so in the
        listed order. Collectives keep their order, and a message that is sent before a collective is received before
        that collective. Other ranks may make the matching calls outside a block.

        A call in the block checks its arguments at once and returns an array, which contains the result when the block
        has ended. Until then do not change or read the arrays of the call. `_async` variants start at the end of the
        block too, and the `Work` objects that they return are done then. The block takes at most the longest of its
        calls' timeouts. It raises the first error of its calls. If the body of the block raises, none of its calls is
        issued.

        RuntimeError for calls that would have to wait inside the block: plans, split, dup, synchronize, another
        group(), waiting for a `Work` of the block, and calls that exchange lengths first (scatter, allgatherv, gatherv,
        scatterv, alltoallv). ValueError if `op` is a function, and if `x` is on a GPU and `out` is not given.
        """
        return self._runner.together()

    def synchronize(self, stream: Any = None, timeout: Seconds = None) -> None:
        """Return when all operations that this rank started in the background are complete; raise their first error.

        Operations on device memory are complete when their streams have passed them. `stream`: wait only for those in
        this stream (a stream of CuPy, PyTorch or Numba, or its handle). ValueError if the communicator uses no device.

        An error is raised once, whether or not the `Work` of the operation has been waited for; an error that broke the
        communicator is raised each time. `timeout`: in seconds; None waits until each operation's own deadline. When
        `timeout` has passed, OpTimeout is raised and the operations continue. RuntimeError inside `group()`.
        """
        self._runner.synchronize(stream, timeout)
