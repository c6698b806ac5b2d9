"""Movements: the methods of a communicator that move data between ranks without reducing it, and the barrier.

Invariant: if a call exchanges lengths first, every rank learns of lengths that do not match.
"""

from __future__ import annotations

from typing import Any

from collectives.arrays.wire import WireChoice
from collectives.calls.moves import Calls, one_byte
from collectives.calls.repeated import repeated
from collectives.calls.runner import Runner, Seconds
from collectives.calls.work import Work


class Movements:
    """The methods of a communicator that move data without a reduction. `Communicator` is derived from this class."""

    _runner: Runner
    _calls: Calls

    @repeated("x")
    def broadcast(
        self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Any:
        """Overwrite `x` on every rank with the `x` of rank `root`. Returns `x`.

        `x` has to have the same shape and dtype on all ranks.
        """
        return self._runner.remembered(self._calls.broadcast, x, None, timeout, root, algorithm, stream=stream)

    def broadcast_async(
        self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Work[Any]:
        """`broadcast` in the background."""
        return self._runner.start(self, self._calls.broadcast, x, None, timeout, root, algorithm, stream=stream)

    @repeated("x")
    def allgather(
        self,
        x: Any,
        *,
        out: Any = None,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Returns every rank's `x`, stacked in rank order: an array of shape (size, *x.shape).

        `x` has to have the same shape and dtype on all ranks. `out`: an array of that shape to write to.

        `wire`: the format in which float32 numbers are sent, "bf16", "fp16", "fp8", "int8" or "auto", as in
        `allreduce`. Every rank's numbers are rounded once, this rank's too, see docs/calls.md.
        """
        form = None if wire is None else self._runner.wire(wire, "allgather", x, out)
        if form is not None:
            return self._runner.run_wired("allgather", x, out, timeout, algorithm, form, stream=stream)
        build = self._calls.allgather
        return self._runner.remembered(build, x, out, timeout, algorithm, stream=stream, more=(wire,))

    def allgather_async(
        self,
        x: Any,
        *,
        out: Any = None,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`allgather` in the background."""
        form = None if wire is None else self._runner.wire(wire, "allgather", x, out)
        if form is not None:
            return self._runner.start_wired(self, "allgather", x, out, timeout, algorithm, form, stream=stream)
        return self._runner.start(self, self._calls.allgather, x, out, timeout, algorithm, stream=stream)

    def allgatherv(self, x: Any, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None) -> Any:
        """Returns every rank's `x`, concatenated on the first axis in rank order. Only x.shape[0] may differ.

        DesyncError on every rank if dtypes, or shapes apart from the first axis, differ.
        """
        return self._runner.call(self._calls.allgatherv, x, None, timeout, algorithm, stream=stream)

    def allgatherv_async(
        self, x: Any, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Work[Any]:
        """`allgatherv` in the background; returns a `Work`, a handle to wait for.

        Ranks exchange the lengths of their arrays first, so this method returns only when every rank has made the call.
        """
        return self._runner.start(self, self._calls.allgatherv, x, None, timeout, algorithm, stream=stream)

    @repeated("x")
    def gather(
        self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Any:
        """Returns on `root` every rank's `x`, stacked in rank order: shape (size, *x.shape). Returns None elsewhere.

        `x` has to have the same shape and dtype on all ranks.
        """
        return self._runner.remembered(self._calls.gather, x, None, timeout, root, algorithm, stream=stream)

    def gather_async(
        self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Work[Any]:
        """`gather` in the background."""
        return self._runner.start(self, self._calls.gather, x, None, timeout, root, algorithm, stream=stream)

    def gatherv(
        self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Any:
        """As `allgatherv`, on `root` only; None elsewhere."""
        return self._runner.call(self._calls.gatherv, x, None, timeout, root, algorithm, stream=stream)

    def gatherv_async(
        self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Work[Any]:
        """`gatherv` in the background; returns a `Work`, a handle to wait for.

        Ranks exchange the lengths of their arrays first, so this method returns only when every rank has made the call.
        """
        return self._runner.start(self, self._calls.gatherv, x, None, timeout, root, algorithm, stream=stream)

    def scatter(
        self, x: Any = None, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Any:
        """Returns x[rank] of the root's `x`, which has shape (size, ...).

        Other ranks pass None as `x`, because the root sends them the shape and dtype. If the root's `x` is invalid, the
        root raises ValueError or TypeError, and the other ranks raise Aborted.
        """
        return self._runner.call(self._calls.scatter, x, None, timeout, root, algorithm, stream=stream)

    def scatter_async(
        self, x: Any = None, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Work[Any]:
        """`scatter` in the background; returns a `Work`, a handle to wait for.

        The root sends the shape of `x` first, so this method returns only when the root has made the call.
        """
        return self._runner.start(self, self._calls.scatter, x, None, timeout, root, algorithm, stream=stream)

    def scatterv(
        self,
        x: Any = None,
        counts: Any = None,
        root: int = 0,
        *,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Returns this rank's rows of the root's `x`: rank 0 gets the first counts[0] rows, rank 1 the next counts[1].

        The other ranks get the following rows in the same way. Ranks other than the root pass None for `x` and
        `counts`. ValueError if `counts` do not add up to x.shape[0]. If the root's arguments are invalid, the root
        raises ValueError or TypeError, and the other ranks raise Aborted.
        """
        return self._runner.call(self._calls.scatterv, x, None, timeout, counts, root, algorithm, stream=stream)

    def scatterv_async(
        self,
        x: Any = None,
        counts: Any = None,
        root: int = 0,
        *,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`scatterv` in the background; returns a `Work`, a handle to wait for.

        The root sends the shape of `x` first, so this method returns only when the root has made the call.
        """
        return self._runner.start(self, self._calls.scatterv, x, None, timeout, counts, root, algorithm, stream=stream)

    @repeated("x")
    def alltoall(
        self, x: Any, *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Any:
        """Sends block i of `x` (x.shape[0] / size rows) to rank i. Returns the received blocks, in rank order.

        `x` has the same shape and dtype on all ranks; the returned array has this shape too. `out`: an array of this
        shape to write to. ValueError if `size` does not divide `x.shape[0]`.
        """
        return self._runner.remembered(self._calls.alltoall, x, out, timeout, algorithm, stream=stream)

    def alltoall_async(
        self, x: Any, *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Work[Any]:
        """`alltoall` in the background."""
        return self._runner.start(self, self._calls.alltoall, x, out, timeout, algorithm, stream=stream)

    def alltoallv(
        self, x: Any, counts: Any, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Any:
        """Sends the first counts[0] rows of `x` to rank 0, the next counts[1] rows to rank 1, and so on.

        Returns the received rows, in the order of the ranks that sent them. ValueError if `counts` do not add up to
        x.shape[0]; DesyncError on every rank if dtypes or the shapes of rows differ.
        """
        return self._runner.call(self._calls.alltoallv, x, None, timeout, counts, algorithm, stream=stream)

    def alltoallv_async(
        self, x: Any, counts: Any, *, algorithm: str = "auto", timeout: Seconds = None, stream: Any = None
    ) -> Work[Any]:
        """`alltoallv` in the background; returns a `Work`, a handle to wait for.

        Ranks exchange the lengths of their arrays first, so this method returns only when every rank has made the call.
        """
        return self._runner.start(self, self._calls.alltoallv, x, None, timeout, counts, algorithm, stream=stream)

    @repeated(None)
    def barrier(self, *, algorithm: str = "auto", timeout: Seconds = None) -> None:
        """Return when every rank has called `barrier`."""
        self._runner.remembered(self._calls.barrier, *one_byte(), timeout, algorithm)

    def barrier_async(self, *, algorithm: str = "auto", timeout: Seconds = None) -> Work[None]:
        """`barrier` in the background."""
        return self._runner.start(self, self._calls.barrier, *one_byte(), timeout, algorithm)
