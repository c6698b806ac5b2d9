"""Reductions: the methods of a communicator that combine the arrays of all ranks.

Invariant: a result has the same bits on every rank that gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectives.arrays.wire import WireChoice
from collectives.calls.fusion import BUCKET
from collectives.calls.op import Reduction
from collectives.calls.reductions import ReductionCalls
from collectives.calls.repeated import repeated
from collectives.calls.runner import Runner, Seconds
from collectives.calls.work import Work


class Reductions:
    """The methods of a communicator that reduce arrays. `Communicator` is derived from this class."""

    _runner: Runner
    _reductions: ReductionCalls

    @repeated("x")
    def allreduce(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Reduces every rank's `x` by `op`. Returns the result, which has the same bits on every rank.

        `x` has to have the same shape and dtype on all ranks. `out`: an array of this shape and dtype to write to,
        which may be `x` itself. Returns `out`, or a new array.

        `wire`: the format in which float32 numbers are sent, the same on every rank: "bf16" or "fp16" for 16 bits, or
        "fp8" or "int8" for 8 bits with a scale for each 256 numbers. It is for the ops sum and avg, and for arrays in
        host memory. Partial sums are computed in float32, and rounded when they are sent. See docs/calls.md for the
        rounding errors. Raises TypeError for another dtype or a device array, and ValueError for another op.

        With `wire="auto"`, numbers are sent in the format that `collectives calibrate` has measured as fastest in such
        a group for so many bytes. They are sent as they are if nothing was measured, and for dtypes, devices and ops
        that have no formats.
        """
        form = None if wire is None else self._runner.wire(wire, "allreduce", x, out, op)
        if form is not None:
            return self._runner.run_wired("allreduce", x, out, timeout, op, algorithm, form, stream=stream)
        build = self._reductions.allreduce
        return self._runner.remembered(build, x, out, timeout, op, algorithm, stream=stream, more=(wire,))

    def allreduce_async(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`allreduce` in the background. With `wire`, `x` is encoded before this method returns."""
        form = None if wire is None else self._runner.wire(wire, "allreduce", x, out, op)
        if form is not None:
            return self._runner.start_wired(self, "allreduce", x, out, timeout, op, algorithm, form, stream=stream)
        return self._runner.start(self, self._reductions.allreduce, x, out, timeout, op, algorithm, stream=stream)

    def allreduce_many(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        bucket_bytes: int = BUCKET,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> list[Any]:
        """Runs an `allreduce` of each array of a list. Returns the results as a list.

        Shapes and dtypes may differ within the list, but not between ranks. Small arrays of one dtype are joined into
        buckets of up to `bucket_bytes` bytes, and each bucket is reduced at once. `out`: a list of arrays for the
        results, which may be `arrays` itself. No array may share memory with the result of another array. If NCCL runs
        the call, all arrays have to be on one device. NCCL then reduces them together where they are, without buckets.
        `wire`: as in `allreduce`. All arrays then have to be float32, and no scale is for numbers of two arrays. "auto"
        chooses by the bytes of the whole list, and sends all arrays as they are if one has another dtype.

        Raises ValueError or TypeError for an invalid array, which it names, before anything is sent. DesyncError if
        ranks pass different shapes, dtypes or `bucket_bytes`.
        """
        form = None if wire is None else self._runner.wire(wire, "allreduce_many", arrays, out, op)
        if form is not None:
            found: list[Any] = self._runner.run_wired(
                "allreduce_many", arrays, out, timeout, op, bucket_bytes, algorithm, form, stream=stream
            )
            return found
        return self._runner.run_many(stream, arrays, out, timeout, op, bucket_bytes, algorithm)

    def allreduce_many_async(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        bucket_bytes: int = BUCKET,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[list[Any]]:
        """`allreduce_many` in the background; returns a `Work`, a handle to wait for.

        Arrays that are joined into buckets are copied before this method returns.
        """
        form = None if wire is None else self._runner.wire(wire, "allreduce_many", arrays, out, op)
        if form is not None:
            return self._runner.start_wired(
                self, "allreduce_many", arrays, out, timeout, op, bucket_bytes, algorithm, form, stream=stream
            )
        return self._runner.start_many(self, stream, arrays, out, timeout, op, bucket_bytes, algorithm)

    @repeated("x")
    def reduce(
        self,
        x: Any,
        op: Reduction = "sum",
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Reduces every rank's `x` by `op`. Returns the result on rank `root`, and None on the other ranks.

        `x` has to have the same shape and dtype on all ranks. `out`: an array of this shape and dtype that the root
        writes to; other ranks do not use it.
        """
        return self._runner.remembered(self._reductions.reduce, x, out, timeout, op, root, algorithm, stream=stream)

    def reduce_async(
        self,
        x: Any,
        op: Reduction = "sum",
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`reduce` in the background."""
        return self._runner.start(self, self._reductions.reduce, x, out, timeout, op, root, algorithm, stream=stream)

    @repeated("x")
    def reduce_scatter(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Reduces every rank's `x` by `op`, and returns this rank's block of the result.

        With n = x.shape[0] / size, the block is rows rank * n to (rank + 1) * n - 1. `out`: an array of shape (n,
        *x.shape[1:]) to write to. `wire`: as in `allreduce`. ValueError if `size` does not divide `x.shape[0]`.
        """
        form = None if wire is None else self._runner.wire(wire, "reduce_scatter", x, out, op)
        if form is not None:
            return self._runner.run_wired("reduce_scatter", x, out, timeout, op, algorithm, form, stream=stream)
        build = self._reductions.reduce_scatter
        return self._runner.remembered(build, x, out, timeout, op, algorithm, stream=stream, more=(wire,))

    def reduce_scatter_async(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`reduce_scatter` in the background."""
        form = None if wire is None else self._runner.wire(wire, "reduce_scatter", x, out, op)
        if form is not None:
            return self._runner.start_wired(self, "reduce_scatter", x, out, timeout, op, algorithm, form, stream=stream)
        return self._runner.start(self, self._reductions.reduce_scatter, x, out, timeout, op, algorithm, stream=stream)

    def reduce_scatterv(
        self,
        x: Any,
        counts: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Reduces every rank's `x` by `op`, and returns this rank's rows of the result.

        Rank 0 gets the first counts[0] rows, rank 1 the next counts[1], and so on. `counts` has to be the same on every
        rank (DesyncError if not). ValueError if `counts` do not add up to x.shape[0]. `out`: an array of shape
        (counts[rank], *x.shape[1:]) to write to.
        """
        return self._runner.call(
            self._reductions.reduce_scatterv, x, out, timeout, counts, op, algorithm, stream=stream
        )

    def reduce_scatterv_async(
        self,
        x: Any,
        counts: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`reduce_scatterv` in the background."""
        return self._runner.start(
            self, self._reductions.reduce_scatterv, x, out, timeout, counts, op, algorithm, stream=stream
        )

    @repeated("x")
    def scan(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Reduces the `x` of ranks 0 to this rank (inclusive) by `op`, in the order of ranks. Returns the result.

        `out`: an array to write to, which may be `x` itself. ValueError for the op avg: divide a sum by `rank + 1`
        instead.
        """
        return self._runner.remembered(self._reductions.scan, x, out, timeout, op, algorithm, stream=stream)

    def scan_async(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`scan` in the background."""
        return self._runner.start(self, self._reductions.scan, x, out, timeout, op, algorithm, stream=stream)

    @repeated("x")
    def exscan(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """Reduces the `x` of all ranks before this rank by `op`, in the order of ranks. Returns the result.

        MPI leaves the result of rank 0 undefined. Here rank 0 gets the identity of `op`: 0 for sum, the dtype's largest
        value for min, and so on. If `op` is a function without an identity, rank 0 gets None, and `out` stays as it
        was.
        """
        return self._runner.remembered(self._reductions.exscan, x, out, timeout, op, algorithm, stream=stream)

    def exscan_async(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`exscan` in the background."""
        return self._runner.start(self, self._reductions.exscan, x, out, timeout, op, algorithm, stream=stream)
