"""The methods of a communicator that make plans: calls prepared once, to run many times on the same arrays.

Invariant: making a plan sends nothing, unless lengths are exchanged first (scatter, allgatherv, gatherv, scatterv,
alltoallv). Every rank has to make such a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectives.arrays.wire import WireChoice
from collectives.calls.fusion import BUCKET
from collectives.calls.messages import MessageCalls
from collectives.calls.moves import Calls, one_byte
from collectives.calls.op import Reduction
from collectives.calls.plan import Plan, check_planned
from collectives.calls.reductions import ReductionCalls
from collectives.calls.runner import Build, Runner, Seconds
from collectives.calls.status import Status


class Plans:
    """The methods of a communicator that return plans: calls prepared once, to run many times on the same arrays.

    `Communicator` is derived from this class. The arrays of a plan are C-contiguous NumPy arrays; each run of the plan
    reads and writes their current contents. If `out` is not given, or the method has no `out`, the plan makes one
    array, `plan.out`, which every run overwrites. All ranks have to run their plans and make other calls in the same
    order. A run takes less time than an ordinary call, because arguments are checked only once.
    """

    _runner: Runner
    _calls: Calls
    _reductions: ReductionCalls
    _messages: MessageCalls

    def allreduce_plan(
        self,
        x: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
    ) -> Plan:
        """Prepares `allreduce` for many runs: `plan = comm.allreduce_plan(x, out=x)`, then `plan()` for each run.

        Each run reduces the current contents of `x` into `out`; if `out` is None, into the array `plan.out`. `wire`: as
        in `allreduce`.
        """
        form = None if wire is None else self._runner.wire(wire, "allreduce", x, out, op)
        if form is not None:
            check_planned(x, "x")
            if out is not None:
                check_planned(out, "out")
            return self._runner.plan_wired(self, "allreduce", x, out, timeout, op, algorithm, form)
        return self._plan(self._reductions.allreduce, x, out, timeout, op, algorithm)

    def allreduce_many_plan(
        self,
        arrays: Sequence[Any],
        op: str = "sum",
        *,
        bucket_bytes: int = BUCKET,
        algorithm: str = "auto",
        wire: WireChoice | None = None,
        timeout: Seconds = None,
    ) -> Plan:
        """Prepares `allreduce_many` of these NumPy arrays, in place: each run replaces their contents by the results.

        A run waits until the previous run has ended. The plan keeps a buffer for small arrays that are joined. `wire`:
        as in `allreduce_many`; "auto" is resolved once, here.
        """
        form = None if wire is None else self._runner.wire(wire, "allreduce_many", arrays, arrays, op)
        if form is not None:
            return self._runner.plan_many_wired(self, arrays, timeout, op, bucket_bytes, algorithm, form)
        return self._runner.plan_many(self, arrays, timeout, op, bucket_bytes, algorithm)

    def reduce_plan(
        self,
        x: Any,
        op: Reduction = "sum",
        root: int = 0,
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> Plan:
        """Prepares `reduce` of these arrays."""
        return self._plan(self._reductions.reduce, x, out, timeout, op, root, algorithm)

    def scan_plan(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Plan:
        """Prepares `scan` of these arrays."""
        return self._plan(self._reductions.scan, x, out, timeout, op, algorithm)

    def exscan_plan(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Plan:
        """Prepares `exscan` of these arrays."""
        return self._plan(self._reductions.exscan, x, out, timeout, op, algorithm)

    def reduce_scatter_plan(
        self, x: Any, op: Reduction = "sum", *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None
    ) -> Plan:
        """Prepares `reduce_scatter` of these arrays."""
        return self._plan(self._reductions.reduce_scatter, x, out, timeout, op, algorithm)

    def reduce_scatterv_plan(
        self,
        x: Any,
        counts: Any,
        op: Reduction = "sum",
        *,
        out: Any = None,
        algorithm: str = "auto",
        timeout: Seconds = None,
    ) -> Plan:
        """Prepares `reduce_scatterv` of these arrays."""
        return self._plan(self._reductions.reduce_scatterv, x, out, timeout, counts, op, algorithm)

    def broadcast_plan(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `broadcast` of this array."""
        return self._plan(self._calls.broadcast, x, None, timeout, root, algorithm)

    def allgather_plan(self, x: Any, *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `allgather` of these arrays."""
        return self._plan(self._calls.allgather, x, out, timeout, algorithm)

    def allgatherv_plan(self, x: Any, *, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `allgatherv` of `x` for many runs; returns a plan, and `plan()` runs it once.

        All ranks have to call this method, because it exchanges the lengths of their arrays.
        `plan()` does not exchange them again.
        """
        return self._plan(self._calls.allgatherv, x, None, timeout, algorithm)

    def gather_plan(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `gather` of these arrays."""
        return self._plan(self._calls.gather, x, None, timeout, root, algorithm)

    def gatherv_plan(self, x: Any, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `gatherv` of `x` for many runs; returns a plan, and `plan()` runs it once.

        All ranks have to call this method, because it exchanges the lengths of their arrays.
        `plan()` does not exchange them again.
        """
        return self._plan(self._calls.gatherv, x, None, timeout, root, algorithm)

    def scatter_plan(self, x: Any = None, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `scatter` of the root's `x` for many runs; returns a plan, and `plan()` runs it once.

        All ranks have to call this method, because it sends them the shape of `x`. `plan()` does
        not send it again.
        """
        return self._plan(self._calls.scatter, x, None, timeout, root, algorithm)

    def scatterv_plan(
        self, x: Any = None, counts: Any = None, root: int = 0, *, algorithm: str = "auto", timeout: Seconds = None
    ) -> Plan:
        """Prepares `scatterv` of the root's `x` for many runs; returns a plan, and `plan()` runs it once.

        All ranks have to call this method, because it sends them the shape of `x` and the counts.
        `plan()` does not send them again.
        """
        return self._plan(self._calls.scatterv, x, None, timeout, counts, root, algorithm)

    def alltoall_plan(self, x: Any, *, out: Any = None, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `alltoall` of these arrays."""
        return self._plan(self._calls.alltoall, x, out, timeout, algorithm)

    def alltoallv_plan(self, x: Any, counts: Any, *, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `alltoallv` of `x` for many runs; returns a plan, and `plan()` runs it once.

        All ranks have to call this method, because it exchanges the lengths of their arrays.
        `plan()` does not exchange them again.
        """
        return self._plan(self._calls.alltoallv, x, None, timeout, counts, algorithm)

    def barrier_plan(self, *, algorithm: str = "auto", timeout: Seconds = None) -> Plan:
        """Prepares `barrier`."""
        return self._plan(self._calls.barrier, *one_byte(), timeout, algorithm)

    def send_plan(self, x: Any, dest: int, *, timeout: Seconds = None) -> Plan:
        """Prepares `send` of this array."""
        return self._plan(self._messages.send, x, None, timeout, dest)

    def recv_plan(
        self, out: Any, source: int | None = None, *, status: Status | None = None, timeout: Seconds = None
    ) -> Plan:
        """Prepares `recv` into `out` for many runs; returns a plan, and `plan()` receives one message.

        `source`: the rank that sends, None for any rank. Each run stores the sender and length of its message in
        `status`.
        """
        check_planned(out, "out")
        return self._plan(self._messages.recv, out, None, timeout, source, status)

    def sendrecv_plan(
        self,
        x: Any,
        dest: int,
        out: Any,
        source: int | None = None,
        *,
        status: Status | None = None,
        timeout: Seconds = None,
    ) -> Plan:
        """Prepares `sendrecv` of these arrays."""
        return self._plan(self._messages.sendrecv, x, out, timeout, dest, source, status)

    def _plan(self, build: Build, x: Any, out: Any, timeout: Seconds, *args: Any) -> Plan:
        if x is not None:  # None on ranks of a scatter that only receive
            check_planned(x, "x")
        if out is not None:
            check_planned(out, "out")
        return self._runner.plan(self, build, x, out, timeout, *args)
