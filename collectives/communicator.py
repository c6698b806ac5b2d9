"""Communicator: a group of ranks, and the collectives that they run together.

Invariant: arguments are refused with TypeError or ValueError before anything is sent. All other errors are
CollectiveErrors; after one that concerns other ranks the communicator is broken, and later calls raise the
first cause again.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from collectives.arrays import Array, Dtype, check_number, check_shape, dtype_of
from collectives.calls import Deadline
from collectives.explaining import explain
from collectives.family import Origin, separate
from collectives.fusion import BUCKET
from collectives.links import Linked
from collectives.repeated import long_way, repeated, repeated_methods
from collectives.runner import Runner
from collectives.schedule.table import Table
from collectives.work import Work
from native._engine import Group, Plan

Seconds: TypeAlias = "float | None"


class Communicator:
    """A group of ranks. Made by `collectives.init`, `split` and `dup`; close it, or use it in a `with` statement.

    Every rank of the group makes the same calls in the same order. `x` may be a NumPy array (bfloat16 is
    `ml_dtypes.bfloat16`), any object with the buffer protocol or DLPack in host memory, or a CuPy array. It is
    copied first if it is not C-contiguous; arrays that are written (`out`, `recv`, `broadcast`) have to be.
    Results are new NumPy arrays (CuPy's for CuPy's) where `out` is None.

    op: sum prod min max avg band bor bxor land lor lxor. avg is for floating and complex dtypes, min and max
    for all but complex ones, those with b and l for integers and bool.

    `timeout` is in seconds, None for the communicator's own. `algorithm` is "auto" or a name that `explain`
    lists, the same on every rank. Each call has an `_async` twin, which returns a `Work` and runs in the
    background; those that have to agree on lengths first (scatter, and names ending in v) wait for that.

    Errors of every call: TypeError, ValueError (see above), PeerLost, OpTimeout, DesyncError (ranks called
    different things), Aborted (closed meanwhile), RuntimeError (two threads at once: give each its own by `dup`).
    """

    def __init__(
        self, rank: int, linked: Linked, origin: Origin, name: str, timeout: float, closing: Callable[[], None]
    ) -> None:
        """For users: `collectives.init`. Takes over `linked`; `closing` is called once, when it is closed."""
        self._rank: Final = rank
        self._linked: Final = linked
        self._origin: Final = origin
        self._children = 0
        self._attached: Final[list[Callable[[], object]]] = []
        self._runner: Final = Runner(
            linked.group, rank, linked.situation, linked.layout, name, timeout, partial(_memory, linked.group)
        )
        self._calls: Final = self._runner.calls
        self._byte: Final = _bytes()
        for method, (function, form) in _REPEATED.items():
            # Hides the method, which documents it, with what does the same sooner.
            way = long_way(self, function, self._runner.gate.refuse)
            given = self._byte if method == "barrier" else None
            self.__dict__[method] = self._runner.repeater(method, way, form, given)
        self._shut: Final = weakref.finalize(self, _shut, linked, closing, os.getpid())

    # --- what it is

    @property
    def rank(self) -> int:
        """This process's number in the group, from 0 to `size - 1`."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._linked.situation.size

    @property
    def local_rank(self) -> int:
        """This rank's number among those of its host, from 0."""
        return self._linked.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks are on this rank's host: one machine and, in it, one network namespace."""
        return self._linked.local_size

    @property
    def epoch(self) -> int:
        """0 for the group that met first."""
        return self._origin.epoch

    @property
    def name(self) -> str:
        """As given to `collectives.init`, with what was appended by `split` and `dup`."""
        return self._runner.gate.name

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or by the end of a `with` statement."""
        return not self._shut.alive

    @property
    def timeout(self) -> float:
        """Seconds that a call waits for other ranks where it is not told otherwise."""
        return self._runner.timeout

    def __repr__(self) -> str:
        links = self._linked.situation.kind
        return f"<Communicator {self.name!r}: rank {self.rank} of {self.size} over {links}, epoch {self.epoch}>"

    def explain(self, collective: str, nbytes: int, dtype: Any = "float32") -> str:
        """What would run for `collective` of `nbytes` bytes of `dtype`, why, and this rank's steps, as text.

        `nbytes` is the size of the larger of the arrays that a rank passes and gets.
        """
        linked = self._linked
        return explain(self._calls.prepare, linked.kinds, collective, nbytes, dtype_of(dtype), linked.sockets)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> npt.NDArray[Any]:
        """An uninitialised NumPy array in memory that ranks on this machine can read directly.

        Collectives on such arrays skip a copy. It is returned to the system with the last reference, also
        after `close`. Where no rank shares memory with this one it is an ordinary array. TypeError for a dtype
        that there is not, ValueError for a negative shape.
        """
        kind = dtype_of(dtype)
        extents = check_shape(shape)
        self._runner.gate.check()
        return _memory(self._linked.group, math.prod(extents), kind).reshape(extents)

    # --- its life

    def dup(self) -> Communicator:
        """A communicator of the same ranks, independent of this one: for another thread, or a library."""
        self._children += 1
        child = self._child(0, self._rank, f"dup{self._children}")
        assert child is not None
        return child

    def attached(self) -> Communicator:
        """A `dup` that is closed with this one: for what works on its behalf, such as gradient hooks."""
        child = self.dup()
        self._attached.append(weakref.finalize(self, child.close))
        return child

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """A communicator of the ranks that give the same `color`, numbered by `key`, then by rank here.

        None for ranks that give the color None. `key` None means this rank's number.
        """
        chosen = None if color is None else check_number(color, "color")
        place = self._rank if key is None else check_number(key, "key")
        self._children += 1
        return self._child(chosen, place, f"split{self._children}.{chosen}")

    def _child(self, color: int | None, key: int, path: str, sockets: int | None = None) -> Communicator | None:
        runner = self._runner
        deadline = Deadline(runner.timeout)
        origin = self._origin.child(path, sockets)
        found = separate(self._rank, color, key, origin, self._everyones, deadline, self._linked)
        if found is None:
            return None
        child = Communicator(*found, origin, f"{self.name}.{path}", runner.timeout, _nothing)
        child._choose_by(self._calls.prepare.table)
        try:
            child.barrier(timeout=deadline.left)
        except BaseException:
            child.close()
            raise
        return child

    def _choose_by(self, table: Table) -> None:
        """Leave choices to this table, the same on every rank, and in communicators made of this one."""
        self._calls.prepare.use(table)

    def _everyones(self, data: bytes) -> list[bytes]:
        mine = np.frombuffer(data, np.uint8)
        ends = np.cumsum(self.allgather(np.array(mine.size))).tolist()
        whole = self.allgatherv(mine).tobytes()
        return [whole[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def close(self) -> None:
        """End it: links, threads and memory go; calls under way, and peers that wait for this rank, raise.

        Does not wait for other ranks. May be called again, and from any thread; never raises.
        """
        self._runner.gate.close()
        self._shut()
        for close in self._attached:
            close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- one array in, one out

    @repeated("x")
    def allreduce(
        self, x: Any, op: str = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Any:
        """The reduction of every rank's `x`, of the same shape and dtype everywhere; the same bits on every rank.

        `out`: an array of x's shape and dtype to write to, which may be `x` itself. Returns `out`, or a new array.
        """
        return self._runner.remembered(self._calls.allreduce, x, out, timeout, op, algorithm)

    def allreduce_plan(
        self, x: Any, op: str = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Plan:
        """`allreduce` of these arrays made ready: `plan = comm.allreduce_plan(x, out=x)`, then `plan()` each time.

        `x` and `out` are C-contiguous NumPy arrays, which the plan reads and writes, as they then are, at every
        call; out=None makes one, `plan.out`. A call returns `out` and costs next to nothing beside the operation.
        Every rank calls its plan at the same place in its order of calls. Nothing is sent before.
        """
        return self._runner.plan(x, out, timeout, op, algorithm)

    def allreduce_async(
        self, x: Any, op: str = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Work[Any]:
        """`allreduce` in the background."""
        return self._runner.start(self._calls.allreduce, x, out, timeout, op, algorithm)

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
        """`allreduce` of each of these arrays, of any shapes and dtypes, the same lists on every rank.

        Small arrays of one dtype travel together, up to `bucket_bytes` of them at a time. `out`: a list of arrays
        to write to, `arrays` itself to work in place; no array may share memory with another one's result.
        Returns the results as a list. ValueError and TypeError say which array is wrong, before anything is
        sent; DesyncError where lists, or `bucket_bytes`, differ between ranks.
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
        """`allreduce_many` in the background. Small arrays have been read when it returns."""
        return self._runner.start_many(arrays, out, timeout, op, bucket_bytes, algorithm)

    @repeated("x")
    def reduce(
        self,
        x: Any,
        op: str = "sum",
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> Any:
        """The reduction of every rank's `x` on `root`, as `allreduce` gives it; None elsewhere.

        `out` is written on the root only.
        """
        return self._runner.remembered(self._calls.reduce, x, out, timeout, op, root, algorithm)

    def reduce_async(
        self,
        x: Any,
        op: str = "sum",
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> Work[Any]:
        """`reduce` in the background."""
        return self._runner.start(self._calls.reduce, x, out, timeout, op, root, algorithm)

    @repeated("x")
    def reduce_scatter(
        self, x: Any, op: str = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Any:
        """This rank's block of the reduction: rows [rank * n, (rank + 1) * n) of it, n = x.shape[0] / size.

        ValueError where `size` does not divide `x.shape[0]`. `out` has shape (n, *x.shape[1:]).
        """
        return self._runner.remembered(self._calls.reduce_scatter, x, out, timeout, op, algorithm)

    def reduce_scatter_async(
        self, x: Any, op: str = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Work[Any]:
        """`reduce_scatter` in the background."""
        return self._runner.start(self._calls.reduce_scatter, x, out, timeout, op, algorithm)

    @repeated("x")
    def broadcast(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Any:
        """Overwrite `x`, of the same shape and dtype everywhere, with the root's. Returns `x`."""
        return self._runner.remembered(self._calls.broadcast, x, None, timeout, root, algorithm)

    def broadcast_async(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Work[Any]:
        """`broadcast` in the background."""
        return self._runner.start(self._calls.broadcast, x, None, timeout, root, algorithm)

    @repeated("x")
    def allgather(self, x: Any, *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None) -> Any:
        """Every rank's `x`, of the same shape everywhere, stacked: shape (size, *x.shape)."""
        return self._runner.remembered(self._calls.allgather, x, out, timeout, algorithm)

    def allgather_async(
        self, x: Any, *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Work[Any]:
        """`allgather` in the background."""
        return self._runner.start(self._calls.allgather, x, out, timeout, algorithm)

    def allgatherv(self, x: Any, *, algorithm: str = "auto", timeout: Seconds = None) -> Any:
        """Every rank's `x`, joined on the first axis in rank order; only x.shape[0] may differ between ranks.

        DesyncError on every rank where dtypes or the other extents differ.
        """
        return self._runner.run(self._calls.allgatherv, x, algorithm, timeout)

    def allgatherv_async(self, x: Any, *, algorithm: str = "auto", timeout: Seconds = None) -> Work[Any]:
        """`allgatherv` in the background, once every rank has called it."""
        return self._runner.start(self._calls.allgatherv, x, algorithm, timeout)

    @repeated("x")
    def gather(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Any:
        """Every rank's `x`, stacked, on `root`: shape (size, *x.shape); None elsewhere."""
        return self._runner.remembered(self._calls.gather, x, None, timeout, root, algorithm)

    def gather_async(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Work[Any]:
        """`gather` in the background."""
        return self._runner.start(self._calls.gather, x, None, timeout, root, algorithm)

    def gatherv(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Any:
        """As `allgatherv`, on `root` only; None elsewhere."""
        return self._runner.run(self._calls.gatherv, x, root, algorithm, timeout)

    def gatherv_async(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Work[Any]:
        """`gatherv` in the background, once every rank has called it."""
        return self._runner.start(self._calls.gatherv, x, root, algorithm, timeout)

    def scatter(self, x: Any = None, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Any:
        """The root's x[rank], where its `x` has shape (size, ...). Others pass None; shape and dtype travel.

        Where the root's `x` will not do it raises ValueError or TypeError, and the other ranks Aborted.
        """
        return self._runner.run(self._calls.scatter, x, root, algorithm, timeout)

    def scatter_async(
        self, x: Any = None, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None
    ) -> Work[Any]:
        """`scatter` in the background, once the root has called it."""
        return self._runner.start(self._calls.scatter, x, root, algorithm, timeout)

    def scatterv(
        self, x: Any = None, counts: Any = None, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None
    ) -> Any:
        """This rank's rows of the root's `x`: the first counts[0] rows go to rank 0, the next counts[1] to rank 1, ...

        Others pass None. Errors as of `scatter`; ValueError where `counts` do not add up to x.shape[0].
        """
        return self._runner.run(self._calls.scatterv, x, counts, root, algorithm, timeout)

    def scatterv_async(
        self, x: Any = None, counts: Any = None, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None
    ) -> Work[Any]:
        """`scatterv` in the background, once the root has called it."""
        return self._runner.start(self._calls.scatterv, x, counts, root, algorithm, timeout)

    @repeated("x")
    def alltoall(self, x: Any, *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None) -> Any:
        """Block i of `x` goes to rank i, blocks being x.shape[0] / size rows; those received, in rank order.

        ValueError where `size` does not divide `x.shape[0]`.
        """
        return self._runner.remembered(self._calls.alltoall, x, out, timeout, algorithm)

    def alltoall_async(self, x: Any, *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None) -> Work[Any]:
        """`alltoall` in the background."""
        return self._runner.start(self._calls.alltoall, x, out, timeout, algorithm)

    def alltoallv(self, x: Any, counts: Any, *, algorithm: str = "auto", timeout: Seconds = None) -> Any:
        """counts[i] rows of `x` go to rank i; the rows received, in rank order.

        ValueError where `counts` do not add up to x.shape[0]; DesyncError as of `allgatherv`.
        """
        return self._runner.run(self._calls.alltoallv, x, counts, algorithm, timeout)

    def alltoallv_async(self, x: Any, counts: Any, *, algorithm: str = "auto", timeout: Seconds = None) -> Work[Any]:
        """`alltoallv` in the background, once every rank has called it."""
        return self._runner.start(self._calls.alltoallv, x, counts, algorithm, timeout)

    @repeated(None)
    def barrier(self, *, algorithm: str = "auto", timeout: Seconds = None) -> None:
        """Return when every rank has called it."""
        self._runner.remembered(self._calls.barrier, *self._byte, timeout, algorithm)

    def barrier_async(self, *, algorithm: str = "auto", timeout: Seconds = None) -> Work[None]:
        """`barrier` in the background."""
        return self._runner.start(self._calls.barrier, *_bytes(), timeout, algorithm)

    @repeated("x")
    def send(self, x: Any, dest: int, *, timeout: Seconds = None) -> None:
        """Send `x` to rank `dest`, which calls `recv`. Returns when `x` may change; that may wait for `dest`.

        Operations of a communicator run one after another, in the background too: of two ranks that exchange
        arrays one has to receive first.
        """
        self._runner.remembered(self._calls.send, x, None, timeout, dest)

    def send_async(self, x: Any, dest: int, *, timeout: Seconds = None) -> Work[None]:
        """`send` in the background."""
        return self._runner.start(self._calls.send, x, None, timeout, dest)

    @repeated("out")
    def recv(self, out: Any, source: int, *, timeout: Seconds = None) -> Any:
        """Receive into `out` what rank `source` sends, of the same dtype and number of elements. Returns `out`."""
        return self._runner.remembered(self._calls.recv, out, None, timeout, source)

    def recv_async(self, out: Any, source: int, *, timeout: Seconds = None) -> Work[Any]:
        """`recv` in the background."""
        return self._runner.start(self._calls.recv, out, None, timeout, source)


_REPEATED: Final = repeated_methods(Communicator)


def _shut(linked: Linked, closing: Callable[[], None], pid: int) -> None:
    if os.getpid() == pid:  # a forked child has none of the threads, and the rest is the parent's
        linked.close()
        closing()


def _memory(group: Group, elements: int, dtype: Dtype) -> Array:
    """That many, in memory that peers on this host can read, if there are any."""
    memory = group.empty(elements * dtype.itemsize) if elements else None
    return np.empty(elements, dtype) if memory is None else memory.view(dtype)


def _bytes() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """What a barrier carries."""
    return np.zeros(1, np.uint8), np.zeros(1, np.uint8)


def _nothing() -> None: ...
