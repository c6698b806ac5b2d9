"""Calls on arrays in CUDA memory over several hosts that run by NCCL inside each host, and host memory between hosts.

Invariant: whether a call runs like this depends only on data that all ranks have. The call waits on the host for the
other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

from collectives.arrays import cuda
from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import Dtype, name_of
from collectives.calls.external import ExternalCall, Worker
from collectives.calls.header import Header
from collectives.calls.moves import Calls, Deadline
from collectives.calls.nccl import HIERARCHY
from collectives.calls.targets import output, target
from collectives.calls.two_levels import PHASES, ROWS, Checked, Levels, TwoLevelTask
from collectives.engines import Collective
from collectives.native import _engine
from collectives.schedule.layout import Layout


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
        if name not in PHASES:
            return f"it does not run {name}"
        if not op:
            return ""
        if dtype not in _engine.DTYPES:
            return f"host memory does not reduce {dtype}"
        if op not in _engine.OPS:
            return f"there is no op {op!r}"
        return _engine.why_nccl_does_not_reduce(dtype, _engine.OPS[op], *_NEWEST)

    def prepare(
        self,
        name: str,
        array: CudaArray,
        out: Any,
        timeout: float | None,
        op: str,
        root: int,
        stream: Any,
        *,
        named: bool,
    ) -> ExternalCall | None:
        """Returns a collective on `array` in two levels; None if that is impossible. `op`, `root`: "" and -1 for none.

        Raises ValueError in place of None if the call names this algorithm (`named`), or a stream.
        """
        handle = _handle(array, stream)
        deadline = self._calls.limit(timeout)
        size = self._calls.size
        made = target(name, array, out, root, handle, self._calls.rank, size)
        if not self._can(name, array.device, array.dtype, op, deadline, must=named or stream is not None):
            return None
        row = array.size // size if name == "reduce_scatter" else array.size
        rows = (row,) * size if name in ROWS else ()
        return self._call(Checked(name, array, made, op, root, handle, rows), array.shape, deadline)

    def gathered(
        self, name: str, array: CudaArray, root: int, stream: Any, deadline: Deadline, *, named: bool
    ) -> ExternalCall | None:
        """The same for parts of different lengths, which the ranks exchange. `name`: "allgather" or "gather"."""
        handle = _handle(array, stream)
        if not self._can(name, array.device, array.dtype, "", deadline, must=named or stream is not None):
            return None
        rows = self._calls.rows_of_all(array, name, deadline)
        trailing = array.shape[1:]
        receives = root in (-1, self._calls.rank)
        made = cuda.fresh(array, (sum(rows), *trailing), handle) if receives else None
        call = Checked(name, array, made, "", root, handle, _elements(rows, trailing))
        return self._call(call, (*rows, *trailing), deadline)

    def reduce_scattered(
        self, array: CudaArray, out: Any, rows: Sequence[int], op: str, stream: Any, deadline: Deadline, *, named: bool
    ) -> ExternalCall | None:
        """The same for a reduce_scatter whose parts have these numbers of rows."""
        name, handle, trailing = "reduce_scatter", _handle(array, stream), array.shape[1:]
        made = output("reduce_scatterv", array, out, (rows[self._calls.rank], *trailing), handle)
        if not self._can(name, array.device, array.dtype, op, deadline, must=named or stream is not None):
            return None
        call = Checked(name, array, made, op, -1, handle, _elements(rows, trailing))
        return self._call(call, (*rows, *trailing), deadline)

    def scattered(
        self, array: CudaArray | None, made: CudaArray, header: Header, root: int, deadline: Deadline, *, must: bool
    ) -> ExternalCall | None:
        """The same for a scatter, which `header` describes.

        `made`: the array for this rank's rows. `must`: raise ValueError in place of None.
        """
        if not self._can("scatter", made.device, header.dtype, "", deadline, must=must):
            return None
        call = Checked("scatter", array, made, "", root, made.stream, _elements(header.rows, header.trailing))
        return self._call(call, (*header.rows, *header.trailing), deadline)

    def _can(self, name: str, device: int, dtype: Dtype, op: str, deadline: Deadline, *, must: bool) -> bool:
        """Make the communicators if there are none; whether such a call can run. If it `must`, ValueError if not."""
        against = self._formed(device, deadline) or self.why_not(name, name_of(dtype), op)
        if against and must:
            raise ValueError(f"algorithm={HIERARCHY!r} cannot run this call: {against}")
        return not against

    def _call(self, call: Checked, shape: tuple[int, ...], deadline: Deadline) -> ExternalCall:
        """`shape`: what ranks compare; the numbers of rows, if these may differ."""
        assert self._levels is not None and self._worker is not None
        like = call.x or call.out
        assert like is not None
        task = TwoLevelTask(self._levels, self._layout, call)
        described = Collective(call.name, name_of(like.dtype), shape, call.op, call.root)
        x, result = (None if array is None else array.origin for array in (call.x, call.out))
        return ExternalCall(HIERARCHY, described, task, x, result, self._calls, self._worker, deadline)

    def _formed(self, device: int, deadline: Deadline) -> str:
        if self._levels is None and not self._without:
            formed = self._form(device, deadline)
            if isinstance(formed, str):
                self._without = formed
            else:
                self._levels, self._worker = formed, Worker(formed.side)
        return self._without


def is_named(algorithm: object) -> bool:
    """Whether a call names the two levels as its algorithm."""
    return isinstance(algorithm, str) and algorithm == HIERARCHY


def _handle(array: CudaArray, stream: Any) -> int:
    handle = array.stream if stream is None else cuda.handle_of(stream)
    if _engine.is_capturing(handle, array.device):
        raise ValueError("the stream is being captured into a graph, but the call waits on the host: see explain")
    return handle


def _elements(rows: Sequence[int], trailing: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count * math.prod(trailing) for count in rows)


def _why_not(layout: Layout) -> str:
    sizes = {len(members) for members in layout.members}
    if len(layout.members) < 2:
        return "all ranks are on one host"
    if len(sizes) > 1:
        return f"hosts have different numbers of ranks, from {min(sizes)} to {max(sizes)}"
    return "every host has one rank" if sizes == {1} else ""


_NEWEST: Final = (1 << 30, 1 << 30)  # of NCCL and of devices: what an old one lacks shows when the call is prepared
