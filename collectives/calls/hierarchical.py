"""Allreduce of arrays in CUDA memory over several hosts: NCCL inside each host, host memory between them.

NCCL divides the sum of a host among its ranks. Ranks with the same number on their hosts add their parts through pinned
host memory, in slices. NCCL collects the parts on every host.

Invariant: whether a call runs like this depends only on data that all ranks have. Nothing is allocated on the device:
the result's array holds a rank's part. The call waits on the host until it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

from collectives.arrays import cuda
from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import name_of, reduced_name
from collectives.calls import pieces
from collectives.calls.external import ExternalCall, Side, Worker
from collectives.calls.moves import Calls, Deadline
from collectives.calls.nccl import HIERARCHY
from collectives.calls.pieces import Piece
from collectives.calls.staged import StagedCalls
from collectives.calls.streamed import StreamCalls
from collectives.calls.targets import output, reduced
from collectives.engines import Collective
from collectives.engines.engine import Ranks
from collectives.native import _engine
from collectives.schedule.layout import Layout


class Between(NamedTuple):
    """A communicator in host memory, of the ranks with the same number on their hosts."""

    group: _engine.Group
    staged: StagedCalls


class Levels(NamedTuple):
    """The communicators of a two-level allreduce: `within` this rank's host, `between` hosts, `side` of all ranks."""

    within: StreamCalls
    between: Between
    side: Side


class Form(Protocol):
    """Makes the communicators, together with all other ranks."""

    def __call__(self, device: int, deadline: Deadline) -> Levels | str:
        """Returns the communicators, or why they cannot be used: the same on all ranks. Also raises errors of calls."""


class HierarchicalCalls:
    """Prepares the calls of one communicator that run by NCCL inside hosts and through host memory between hosts."""

    def __init__(self, calls: Calls, layout: Layout, form: Form) -> None:
        self._calls: Final = calls
        self._layout: Final = layout
        self._form: Final = form
        self._without = _why_not(layout)
        self._levels: Levels | None = None
        self._worker: Worker | None = None

    @property
    def memory(self) -> int:
        """Bytes of the device's memory that NCCL's communicator of this host holds."""
        return 0 if self._levels is None else self._levels.within.memory

    def why_not(self, name: str, dtype: str, op: str) -> str:
        """Returns why such a call does not run in two levels, inside and between hosts; "" if it does."""
        if self._without:
            return self._without
        if name != "allreduce":
            return f"it does not run {name}"
        if dtype not in _engine.DTYPES:
            return f"host memory does not reduce {dtype}"
        if op not in _engine.OPS:
            return f"there is no op {op!r}"
        return _engine.why_nccl_does_not_reduce(dtype, _engine.OPS[op], *_NEWEST)

    def prepare(
        self, x: Any, out: Any, timeout: float | None, op: str, stream: Any, *, named: bool
    ) -> ExternalCall | None:
        """Returns an allreduce by NCCL inside hosts and host memory between them; None if that is impossible.

        Raises ValueError in place of None if the call names this algorithm (`named`), or a stream.
        """
        array = reduced(x)
        handle = array.stream if stream is None else cuda.handle_of(stream)
        if _engine.is_capturing(handle, array.device):
            raise ValueError("the stream is being captured into a graph, but the call waits on the host: see explain")
        deadline = self._calls.limit(timeout)
        made = output("allreduce", array, out, array.shape, handle)
        against = self._formed(array.device, deadline) or self.why_not("allreduce", name_of(array.dtype), op)
        if against and (named or stream is not None):
            raise ValueError(f"algorithm={HIERARCHY!r} cannot run this call: {against}")
        if against:
            return None
        assert self._levels is not None and self._worker is not None
        task = _Task(self._levels, self._layout.members[self._layout.hosts[self._calls.rank]], array, made, op, handle)
        call = Collective("allreduce", reduced_name(array.dtype) or "", array.shape, op)
        return ExternalCall(HIERARCHY, call, task, x, made.origin, self._calls, self._worker, deadline)

    def _formed(self, device: int, deadline: Deadline) -> str:
        if self._levels is None and not self._without:
            formed = self._form(device, deadline)
            if isinstance(formed, str):
                self._without = formed
            else:
                self._levels, self._worker = formed, Worker(formed.side)
        return self._without


class _Task:
    """One call. Implements `collectives.engines.Task`."""

    def __init__(
        self, levels: Levels, members: Sequence[int], x: CudaArray, out: CudaArray, op: str, handle: int
    ) -> None:
        self._levels: Final = levels
        self._x: Final = _flat(x, handle)
        self._out: Final = _flat(out, handle)
        self._op: Final = op
        self._handle: Final = handle
        self._producer: Final = x.stream
        self._keeps: Final = (x, out)
        self._size: Final = len(members)

    def run(self, _x: Any, _out: Any, ranks: Ranks) -> Any:
        levels, x, out, op = self._levels, self._x, self._out, self._op
        deadline = Deadline(ranks.seconds_left)
        rank = levels.within.rank
        bounds = [x.size * r // self._size for r in range(self._size + 1)]
        counts = [b - a for a, b in pairwise(bounds)]
        part = _part(out, bounds[rank], counts[rank])
        even = len({*counts}) == 1
        if even:
            scatter = pieces.collective("reduce_scatter", x, part, self._size, op, -1)
        else:
            scatter = pieces.reduce_scatterv(x, part, counts, rank, op)
        self._issue("reduce_scatter", scatter, self._producer, deadline)
        if part.size:
            between = levels.between
            between.staged.allreduce(part, part, op, deadline).run(between.group, deadline.left)
        if even:
            gather = pieces.collective("allgather", part, out, self._size, "", -1)
        else:
            gather = pieces.allgatherv(part, out, counts, rank)
        self._issue("allgather", gather, self._handle, deadline).wait(None)
        return self._keeps[1].origin

    def _issue(self, name: str, planned: Sequence[Piece], producer: int, deadline: Deadline) -> _engine.StreamTicket:
        within, x = self._levels.within, self._x
        op = self._op if name == "reduce_scatter" else ""
        operation = within.agreement(name, x.dtype, op, 0, 0, f"of {x.size}")
        call = within.call(planned, [operation], self._handle, producer, [self._out], None, self._keeps, deadline)
        return within.issue(call, deadline.left)


def _why_not(layout: Layout) -> str:
    sizes = {len(members) for members in layout.members}
    if len(layout.members) < 2:
        return "all ranks are on one host"
    if len(sizes) > 1:
        return f"hosts have different numbers of ranks, from {min(sizes)} to {max(sizes)}"
    return "every host has one rank" if sizes == {1} else ""


def _flat(array: CudaArray, stream: int) -> CudaArray:
    return array._replace(shape=(array.size,), stream=stream)


def _part(array: CudaArray, begin: int, count: int) -> CudaArray:
    return array._replace(address=array.address + begin * array.dtype.itemsize, shape=(count,))


_NEWEST: Final = (1 << 30, 1 << 30)  # of NCCL and of devices: what an old one lacks shows when the call is prepared
