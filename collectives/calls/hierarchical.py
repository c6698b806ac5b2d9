"""Calls on arrays in CUDA memory over several hosts that run by NCCL inside each host, and host memory between hosts.

Invariant: whether a call runs like this depends only on data that all ranks have. The call waits on the host for the
other ranks.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from collectives.arrays import cuda
from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import name_of
from collectives.calls.external import ExternalCall, Worker
from collectives.calls.moves import Calls, Deadline
from collectives.calls.nccl import HIERARCHY
from collectives.calls.targets import target
from collectives.calls.two_levels import PHASES, Checked, Levels, TwoLevelTask
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
        handle = array.stream if stream is None else cuda.handle_of(stream)
        if _engine.is_capturing(handle, array.device):
            raise ValueError("the stream is being captured into a graph, but the call waits on the host: see explain")
        deadline = self._calls.limit(timeout)
        made = target(name, array, out, root, handle, self._calls.rank, self._calls.size)
        dtype = name_of(array.dtype)
        against = self._formed(array.device, deadline) or self.why_not(name, dtype, op)
        if against and (named or stream is not None):
            raise ValueError(f"algorithm={HIERARCHY!r} cannot run this call: {against}")
        if against:
            return None
        assert self._levels is not None and self._worker is not None
        task = TwoLevelTask(self._levels, self._layout, Checked(name, array, made, op, root, handle))
        call = Collective(name, dtype, array.shape, op, root)
        result = None if made is None else made.origin
        return ExternalCall(HIERARCHY, call, task, array.origin, result, self._calls, self._worker, deadline)

    def _formed(self, device: int, deadline: Deadline) -> str:
        if self._levels is None and not self._without:
            formed = self._form(device, deadline)
            if isinstance(formed, str):
                self._without = formed
            else:
                self._levels, self._worker = formed, Worker(formed.side)
        return self._without


def _why_not(layout: Layout) -> str:
    sizes = {len(members) for members in layout.members}
    if len(layout.members) < 2:
        return "all ranks are on one host"
    if len(sizes) > 1:
        return f"hosts have different numbers of ranks, from {min(sizes)} to {max(sizes)}"
    return "every host has one rank" if sizes == {1} else ""


_NEWEST: Final = (1 << 30, 1 << 30)  # of NCCL and of devices: what an old one lacks shows when the call is prepared
