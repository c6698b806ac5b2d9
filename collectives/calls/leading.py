"""Calls on arrays in CUDA memory that the leader form runs: one rank's kernel reads and writes the arrays of all ranks.

Invariant: whether such a call is led depends only on data that all ranks have, so all ranks choose the same. Arguments
are checked before anything is issued. Nothing here waits for a device.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from collectives.arrays import cuda
from collectives.arrays.array import check_rank
from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import Dtype, name_of, reduced_name
from collectives.calls.device_checks import check_apart, check_devices, results_of
from collectives.calls.external import ARGUMENTS
from collectives.calls.issued import Issued
from collectives.calls.moves import Calls, Deadline
from collectives.calls.nccl import ENGINE as NCCL
from collectives.calls.streamed import StreamCalls, check_not_first
from collectives.calls.targets import ROWS, another_device, only_on_devices, reduced, target
from collectives.calls.work import Waiter, Work
from collectives.native import _engine
from collectives.native.errors import CollectiveError, TransportUnavailable
from collectives.native.spelling import hint
from collectives.schedule.select import Choice, select

ENGINE: Final = "leader"

# The calls that can be led. Scatter is not among them: only its root knows the shape.
CALLS: Final = ARGUMENTS.keys() - {"scan", "exscan"}
_SCATTERS: Final = ("scatter", "scatterv")


class Compared(NamedTuple):
    """The result of a comparison of the ranks' devices.

    `shared`: whether some ranks share a device. `against`: why no rank's kernel can work for all ranks; "" if one can.
    """

    shared: bool
    against: str


class Form(Protocol):
    """Forms the leader engine together with all other ranks: one rank's kernel then works for all ranks.

    Both methods also raise the errors of a communicator's calls.
    """

    def compare(self, device: int, wrong: Exception | None, deadline: Deadline) -> Compared:
        """Compare the ranks' devices. `wrong`: an error in this call; this rank raises it, the others raise Aborted."""

    def form(self, device: int, deadline: Deadline) -> tuple[_engine.LeaderMember | None, str]:
        """Returns the leader engine and ""; or None and the reason, equal on all ranks."""


class LeaderCalls:
    """Prepares and issues calls of one communicator in which one rank's kernel, the leader's, works for all ranks."""

    def __init__(self, calls: Calls, without: str, alone: bool, form: Form, nccl: StreamCalls | None) -> None:
        """`without`: why no rank leads, "" if one may. `alone`: no other engine may run. `nccl`: the calls by NCCL."""
        self._calls: Final = calls
        self._without = without
        self.alone: Final = alone
        self._form: Final = form
        self._nccl: Final = nccl
        self._shared: bool | None = None  # whether ranks share a device, once that is known
        self._member: _engine.LeaderMember | None = None
        self._device: int | None = None  # of the engine, once it is formed
        self._issued: Final = Issued()
        if not without and calls.size > _engine.LEADER_MOST_RANKS:
            self._without = f"{calls.size} ranks are more than the {_engine.LEADER_MOST_RANKS} that a kernel is told of"

    @property
    def device(self) -> int | None:
        """The device of the leader engine; None before the first call that needs the engine."""
        return self._device

    @property
    def memory(self) -> int:
        """Bytes of the device's memory that the engine holds on this rank."""
        return 0 if self._member is None else self._member.memory

    @property
    def shares_device(self) -> bool:
        """Whether some ranks share a device; False before the ranks have compared their devices."""
        return bool(self._shared)

    @property
    def compared(self) -> bool:
        """Whether ranks have compared their devices; if so, every rank has its arrays on a device."""
        return self._shared is not None

    def choose(self, name: str, nbytes: int, dtype: str, op: str) -> tuple[Choice | None, str]:
        """Returns the table's choice for arrays in CUDA memory, and why no leader runs the call ("" if one does).

        The choice is None if no row of the table fits.
        """
        against = self._without or self._against(name, dtype, op)
        prepare = self._calls.prepare
        if prepare.table.in_order:
            return (
                None,
                against or "deterministic=True fixes the order of operands, which only calls in host memory keep",
            )

        def usable(algorithm: str) -> bool:
            if algorithm == NCCL:
                return self._nccl is not None and not self._nccl.choose(name, nbytes, dtype, op)[1]
            if algorithm == ENGINE:
                return not against
            return algorithm == "staging" if self._nccl is None else self._nccl.has(algorithm, name, dtype, op)

        situation = replace(prepare.situation, shared_device=bool(self._shared))
        try:
            choice = select(name, nbytes, situation, usable, prepare.table, "cuda")
        except LookupError:
            return None, against or "no row of the table is for it"
        if choice.algorithm == ENGINE:
            return choice, ""
        return choice, against or f"the table chooses {choice.algorithm}"

    def prepare(
        self, name: str, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...], stream: Any
    ) -> LeaderCall | None:
        """Returns the call, ready to be issued, if a leader runs it; None if another engine runs it.

        Raises TypeError or ValueError for invalid arguments. Raises TransportUnavailable if only a leader may run calls
        and cannot run this one.
        """
        if self.alone and name in _SCATTERS:  # only the root has an array, and the others would wait for it
            self.check_elsewhere(f"it does not run {name}", stream)
        if not cuda.on_cuda(x):
            self._refuse_host(name, out, stream)
            return None
        if name not in CALLS:
            self.check_elsewhere(f"it does not run {name}", stream)
            return None
        op, root = (args[place] if place >= 0 else None for place in ARGUMENTS[name])
        if op is not None and not isinstance(op, str):
            self.check_elsewhere("op is a function", stream)
            return None
        at = -1 if root is None or root == -1 else check_rank(root, self._calls.size, "root")
        writes_x = name == "broadcast" and at != self._calls.rank
        array = cuda.writing(x, "x", moved=True) if writes_x else reduced(x) if op else cuda.reading(x, moved=True)
        return self._prepared(name, array, out, self._calls.limit(timeout), op or "", at, args[-1], stream)

    def _prepared(
        self,
        name: str,
        array: CudaArray,
        out: Any,
        deadline: Deadline,
        op: str,
        at: int,
        algorithm: object,
        stream: Any,
    ) -> LeaderCall | None:
        """`prepare` for a checked array. `at`: the root, -1 if there is none."""
        dtype = name_of(array.dtype)
        is_named = isinstance(algorithm, str) and algorithm == ENGINE
        if not is_named and algorithm != "auto":
            self.check_elsewhere(f"algorithm={algorithm!r} was asked for", stream)
            return None
        against = self._without or self._against(name, dtype, op)
        if against or (self._calls.prepare.table.in_order and not is_named):
            against = against or "deterministic=True fixes the order of operands, which only calls in host memory keep"
            self.check_elsewhere(against, stream, is_named)
            return None
        if out is not None and not cuda.on_cuda(out):
            raise ValueError("x is on a CUDA device and out is in host memory: give out on the same device")
        handle = array.stream if stream is None else cuda.handle_of(stream)
        if self._shared is None:
            check_not_first(self._calls)
            self._compare(array.device, handle, deadline)
        if is_named:
            against = self._without
        else:
            choice, against = self.choose(name, array.nbytes, dtype, op)
            if choice is None or choice.algorithm != ENGINE:
                self.check_elsewhere(against, stream)
                return None
        if self._member is None:
            check_not_first(self._calls)
        made = target(name, array, out, at, handle, self._calls.rank, self._calls.size)
        against = against or self._formed(array.device, deadline)
        if against:
            self.check_elsewhere(against, stream, is_named)
            return None
        return self._call(name, array, made, op, at, handle, deadline)

    def many(
        self, arrays: Sequence[Any], out: Any, timeout: float | None, op: Any, algorithm: object, stream: Any
    ) -> LeaderMany | None:
        """Returns an allreduce of each array, one after another; None if another engine runs all of them.

        Raises the errors of `prepare`.
        """
        deadline = self._calls.limit(timeout)
        inputs = [reduced(x, f"array {i} of the list") for i, x in enumerate(arrays)]
        check_devices(inputs, self._calls.rank)
        given = results_of(arrays, out)
        if not isinstance(op, str):
            self.check_elsewhere("op is a function", stream)
            return None
        against = next(filter(None, (self._against("allreduce", name_of(x.dtype), op) for x in inputs)), "")
        if against:
            self.check_elsewhere(against, stream)
            return None
        found = []
        for i, (x, y) in enumerate(zip(inputs, given, strict=True)):
            try:
                call = self._prepared("allreduce", x, y, deadline, op, -1, algorithm, stream)
            except (TypeError, ValueError) as error:
                raise type(error)(f"array {i} of the list: {error}") from None
            if call is None:
                return None
            found.append(call)
        check_apart([(call.x, call.out) for call in found if call.out is not None])
        return LeaderMany(tuple(found), deadline)

    def _refuse_host(self, name: str, out: Any, stream: Any) -> None:
        if self.alone and name != "barrier":
            raise only_on_devices(ENGINE, self._calls.rank)
        if self._nccl is not None:  # which refuses the rest
            return
        if stream is not None:
            raise ValueError("stream is given, but x is not on a CUDA device")
        if out is not None and cuda.on_cuda(out) and not self._without:
            raise ValueError("out is on a CUDA device and x is in host memory: give x on the same device")

    def check_elsewhere(self, reason: str, stream: Any, is_named: bool = False) -> None:
        """Raise if no other engine may run the call, which this one does not run for `reason`.

        `is_named`: the call names this engine as its algorithm.
        """
        if is_named:
            raise ValueError(f"algorithm={ENGINE!r} cannot run this call: {reason}")
        if self.alone:
            raise TransportUnavailable(
                f'transport="{ENGINE}" cannot run this call on rank {self._calls.rank}: {reason}'
            )
        if self._nccl is None and stream is not None:
            raise ValueError(f"stream is given, but the call runs on a copy in host memory: {reason}")

    def _compare(self, device: int, stream: int, deadline: Deadline, wrong: Exception | None = None) -> None:
        try:
            _engine.check_cuda_stream(stream, device)
        except (CollectiveError, ValueError) as error:
            wrong = wrong or error
        compared = self._form.compare(device, wrong, deadline)
        self._shared = compared.shared
        self._without = compared.against

    def _formed(self, device: int, deadline: Deadline) -> str:
        if self._member is None:
            self._member, self._without = self._form.form(device, deadline)
            self._device = None if self._member is None else device
        elif self._device != device:
            raise another_device(device, self._device, self._calls.rank)
        return self._without

    def _against(self, name: str, dtype: str, op: str) -> str:
        """Why such a call is not led, "" if it is. TypeError or ValueError if no engine runs it."""
        if name not in CALLS:
            return f"it does not run {name}"
        code = _engine.OPS.get(op) if op else None
        if op and code is None:
            raise ValueError(f"unknown op {op!r}{hint(op, _engine.OPS)}; there are {', '.join(_engine.OPS)}")
        known = _engine.DTYPES.get(dtype)
        if code is not None and known is None:
            return f"it does not reduce {dtype}"
        if code is not None and known is not None and not _engine.supports(known, code):
            raise TypeError(f"op {op!r} has no meaning for dtype {dtype}")
        return ""

    def _call(
        self, name: str, x: CudaArray, out: CudaArray | None, op: str, root: int, stream: int, deadline: Deadline
    ) -> LeaderCall:
        assert self._member is not None
        dtype = reduced_name(x.dtype) or "uint8"
        operation = self._calls.prepare.agreement(
            name, dtype, op, max(root, 0), zlib.crc32(f"{ENGINE} {x.dtype}".encode()), x.size
        )
        native = self._member.prepare(
            operation,
            name,
            x.address,
            0 if out is None else out.address,
            x.size // self._calls.size if name in ROWS else x.size,
            _engine.DTYPES[dtype],
            x.dtype.itemsize,
            _engine.OPS[op or "sum"],
            max(root, 0),
            stream,
            x.stream if x.stream != stream else None,
        )
        return LeaderCall(self, native, x, out, stream, deadline, cuda.ordered_apart((x, out), stream))

    def connect(self, device: int, deadline: Deadline, wrong: Exception | None = None) -> bool:
        """Forms the leader engine, if calls need it, as the first call would do; waits for the other ranks.

        Returns whether a leader, and not NCCL, runs calls. `wrong`: the error in this rank's call, which is raised.
        Ranks that wait here for this rank raise Aborted.
        """
        if self._shared is None and not self._without:
            self._compare(device, cuda.LEGACY, deadline, wrong)
        leads = not self._without and (self._shared or self._nccl is None)
        if leads and wrong is not None:
            raise wrong
        return leads and not self._formed(device, deadline)

    def compile(self, dtype: Dtype, op: str) -> None:
        """On the leader, compile the kernels that move elements, and those that reduce `dtype` by `op`."""
        code = _engine.DTYPES.get(name_of(dtype))
        if self._member is not None and code is not None:
            self._member.compile(code, _engine.OPS[op])

    def issue(self, call: LeaderCall, seconds: float) -> _engine.StreamTicket:
        """Issue a prepared call, which takes at most `seconds`."""
        assert self._member is not None
        if call.out is not None:
            cuda.begin_write(call.out)
        ticket = self._member.issue(call.native, seconds)
        self._issued.add(call.stream, ticket, cuda.hold(call.apart, call.stream) if call.apart else None)
        return ticket

    def synchronize(self, stream: Any, deadline: Deadline | None) -> None:
        """Wait on the host for all issued calls; raises their first error.

        If `stream` is given: only for calls in this stream, and for replays of CUDA graphs in it.
        """
        wanted = None if stream is None else cuda.handle_of(stream)
        self._issued.wait(wanted, deadline)
        if wanted is not None and self._member is not None:
            self._member.mark(wanted).wait((deadline or Deadline(self._calls.timeout)).left)

    def close(self) -> None:
        """Forget all issued operations. Called after the communicator was closed, which ended the operations."""
        self._issued.clear()

    @property
    def unfinished(self) -> int:
        """How many of the issued operations are not complete."""
        return self._issued.unfinished


class LeaderCall(NamedTuple):
    """A call on CUDA memory with checked arguments, which can be issued several times. Implements `Ready`.

    `apart`: the arrays that have to be held until the stream has passed the call, see `cuda.ordered_apart`.
    """

    calls: LeaderCalls
    native: _engine.LeaderCall
    x: CudaArray
    out: CudaArray | None
    stream: int
    deadline: Deadline
    apart: tuple[CudaArray, ...] = ()

    @property
    def result(self) -> Any:
        return None if self.out is None else self.out.origin

    @property
    def seconds(self) -> float:
        return self.deadline.left

    def run(self, group: _engine.Group, seconds: float) -> Any:
        self.issue(seconds)
        return self.result

    def issue(self, seconds: float) -> _engine.StreamTicket:
        """Put the call into its stream; `delivered` then returns its result."""
        return self.calls.issue(self, seconds)

    def delivered(self) -> Any:
        """The result of the call, which is in its stream."""
        return self.result

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        deliver: Callable[[], Any] = self.delivered  # it keeps the arrays
        return Work(self.calls.issue(self, seconds), deliver, waiter, owner)


class LeaderMany(NamedTuple):
    """The calls of `allreduce_many`, which follow one another in a stream. Implements `Ready`, as `LeaderCall` does."""

    calls: tuple[LeaderCall, ...]
    deadline: Deadline

    @property
    def result(self) -> list[Any]:
        return [call.result for call in self.calls]

    @property
    def stream(self) -> int:
        return self.calls[0].stream

    @property
    def seconds(self) -> float:
        return self.deadline.left

    def run(self, group: _engine.Group, seconds: float) -> list[Any]:
        self.issue(seconds)
        return self.result

    def issue(self, seconds: float) -> _engine.StreamTicket:
        """Put the calls into their stream. Returns the ticket of the last one, which is complete when all are."""
        return [call.issue(seconds) for call in self.calls][-1]

    def delivered(self) -> list[Any]:
        return self.result

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[list[Any]]:
        deliver: Callable[[], list[Any]] = self.delivered  # it keeps the arrays
        return Work(self.issue(seconds), deliver, waiter, owner)


Led: TypeAlias = LeaderCall | LeaderMany
