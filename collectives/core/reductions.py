"""Reductions: the methods of a communicator that combine the arrays of all ranks.

Invariant: a result has the same bits on every rank that gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectives.calls.fusion import BUCKET
from collectives.calls.op import Reduction
from collectives.calls.reductions import ReductionCalls
from collectives.calls.repeated import repeated
from collectives.calls.runner import Runner, Seconds
from collectives.calls.work import Work


class Reductions:
    """A base class of `Communicator`; the docstring of `Communicator` describes what all calls have in common."""

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
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Any:
        """The reduction of every rank's `x`, with the same bits on every rank. All ranks pass one shape and dtype.

        `out`: an array of x's shape and dtype to write to, which may be `x` itself. Returns `out`, or a new array.
        `stream`: for arrays on a CUDA device where NCCL runs the call, the stream to put it into (a stream of CuPy,
        PyTorch or Numba, or its handle); None for the current one of the library of `x`.
        """
        return self._runner.remembered(self._reductions.allreduce, x, out, timeout, op, algorithm, stream=stream)

    def allreduce_async(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
        stream: Any = None,
    ) -> Work[Any]:
        """`allreduce` in the background."""
        return self._runner.start(self, self._reductions.allreduce, x, out, timeout, op, algorithm, stream=stream)

    def allreduce_many(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        bucket_bytes: int = BUCKET,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> list[Any]:
        """`allreduce` of each array of a list. Shapes and dtypes may differ in the list, but not between ranks.

        Small arrays of one dtype are joined into buckets of up to `bucket_bytes` bytes. `out`: a list of arrays for the
        results, which may be `arrays` itself; no array may share memory with the result of another array.

        Returns the results as a list. ValueError and TypeError name the invalid array, before anything is sent;
        DesyncError if ranks pass different shapes, dtypes or `bucket_bytes`.
        """
        return self._runner.run_many(arrays, out, timeout, op, bucket_bytes, algorithm)

    def allreduce_many_async(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        out: Sequence[Any] | None = None,
        bucket_bytes: int = BUCKET,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> Work[list[Any]]:
        """`allreduce_many` in the background.

        Arrays that are joined into buckets are copied before the call returns.
        """
        return self._runner.start_many(self, arrays, out, timeout, op, bucket_bytes, algorithm)

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
    ) -> Any:
        """Returns on `root` the reduction of every rank's `x`, as `allreduce` does, and None on the other ranks.

        `out` is written on the root only.
        """
        return self._runner.remembered(self._reductions.reduce, x, out, timeout, op, root, algorithm)

    def reduce_async(
        self,
        x: Any,
        op: Reduction = "sum",
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> Work[Any]:
        """`reduce` in the background."""
        return self._runner.start(self, self._reductions.reduce, x, out, timeout, op, root, algorithm)

    @repeated("x")
    def reduce_scatter(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Any:
        """This rank's block of the reduction: rows [rank * n, (rank + 1) * n), where n = x.shape[0] / size.

        ValueError if `size` does not divide `x.shape[0]`. `out` has shape (n, *x.shape[1:]).
        """
        return self._runner.remembered(self._reductions.reduce_scatter, x, out, timeout, op, algorithm)

    def reduce_scatter_async(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Work[Any]:
        """`reduce_scatter` in the background."""
        return self._runner.start(self, self._reductions.reduce_scatter, x, out, timeout, op, algorithm)

    def reduce_scatterv(
        self,
        x: Any,
        counts: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> Any:
        """This rank's rows of the reduction: rank 0 gets the first counts[0], rank 1 the next counts[1], and so on.

        `counts` are the same on every rank (DesyncError if they differ), so no lengths are exchanged. ValueError if
        they do not add up to x.shape[0]. `out` has shape (counts[rank], *x.shape[1:]).
        """
        return self._runner.run(self._reductions.reduce_scatterv, x, out, timeout, counts, op, algorithm)

    def reduce_scatterv_async(
        self,
        x: Any,
        counts: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> Work[Any]:
        """`reduce_scatterv` in the background."""
        return self._runner.start(self, self._reductions.reduce_scatterv, x, out, timeout, counts, op, algorithm)

    @repeated("x")
    def scan(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Any:
        """The reduction of the arrays of all ranks from 0 to this one, inclusive, in the order of ranks.

        `out` may be `x` itself. ValueError for avg: divide a sum by `rank + 1` instead.
        """
        return self._runner.remembered(self._reductions.scan, x, out, timeout, op, algorithm)

    def scan_async(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Work[Any]:
        """`scan` in the background."""
        return self._runner.start(self, self._reductions.scan, x, out, timeout, op, algorithm)

    @repeated("x")
    def exscan(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Any:
        """The reduction of the arrays of the ranks before this one: as `scan`, but without this rank's array.

        Rank 0, whose result MPI leaves undefined, gets the identity of `op`: 0 for sum, the dtype's largest value for
        min, and so on. If `op` is a function without an identity, rank 0 gets None, and `out` stays as it was.
        """
        return self._runner.remembered(self._reductions.exscan, x, out, timeout, op, algorithm)

    def exscan_async(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Work[Any]:
        """`exscan` in the background."""
        return self._runner.start(self, self._reductions.exscan, x, out, timeout, op, algorithm)
