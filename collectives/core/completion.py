"""Methods of a communicator that issue several calls together, or wait for all calls in the background.

Invariant: these methods decide when calls are issued and when they are complete, and change nothing else in a call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from collectives.calls.runner import Runner, Seconds


class Completion:
    """The methods `group` and `synchronize` of a communicator. `Communicator` is derived from this class."""

    _runner: Runner

    def group(self) -> AbstractContextManager[None]:
        """Returns a context manager: calls in its `with` block are started together at the end of the block.

            with comm.group():
                comm.send(x, (comm.rank + 1) % comm.size)
                comm.recv(y, (comm.rank - 1) % comm.size)

        The block ends when all its calls are complete. All calls are started before any of them has to be complete. So
        all ranks may send before they receive, and messages with different peers may be listed in any order. Calls that
        read or write the same array do so in the listed order. Collectives keep their order, and a message that is sent
        before a collective is received before that collective. Other ranks may make the matching calls outside a block.

        A call in the block checks its arguments at once, and returns an array that contains the result when the block
        has ended. Until then do not change or read the arrays of the call. `_async` variants start at the end of the
        block too, and the `Work` objects that they return are done then. The time limit of the block is the longest of
        its calls' timeouts. The block raises the first error of its calls. If the body of the block raises, none of its
        calls is started.

        Raises RuntimeError for calls that would have to wait inside the block: plans, split, dup, synchronize, another
        group(), and waiting for a `Work` of the block. RuntimeError also for calls that exchange lengths first:
        scatter, allgatherv, gatherv, scatterv and alltoallv. Raises ValueError if `op` is a function, or if an engine
        of another package runs the call. ValueError also if `x` is on a GPU, the call copies it through host memory,
        and `out` is not given.

        Calls that run in a CUDA stream are in this stream when the block ends, and complete later, as outside a block.
        In one block, all these calls use one stream, and come before the calls on host memory. ValueError for the first
        call on a device in a block: call `prepare` before.
        """
        return self._runner.together()

    def synchronize(self, stream: Any = None, timeout: Seconds = None) -> None:
        """Waits until all operations that this rank started in the background are complete; raises their first error.

        Operations on device memory are complete when their CUDA streams have executed them. `stream`: wait only for
        operations in this stream (a stream of CuPy, PyTorch or Numba, or its handle). `timeout`: in seconds; None waits
        until each operation's own deadline. When `timeout` has passed, OpTimeout is raised and the operations continue.

        An error is raised once, even if the `Work` of the operation has raised it already. An error after which the
        communicator cannot be used is raised each time. ValueError if `stream` is given and the communicator uses no
        device. RuntimeError inside a `group()` block.
        """
        self._runner.synchronize(stream, timeout)
