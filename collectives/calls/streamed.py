"""Operations on arrays in CUDA memory that NCCL runs, in the order of a stream: the choice of NCCL, its communicator,
and what was issued.

Invariant: the choice between NCCL and a copy in host memory depends only on data that all ranks have, so all ranks
choose the same. Nothing here waits for a device, except `synchronize` and `connect`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from collectives.algorithms import registry
from collectives.arrays import cuda
from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import Dtype, check_dtype, name_of, reduced_name
from collectives.calls.issued import Issued
from collectives.calls.moves import Calls, Deadline
from collectives.calls.nccl import COLLECTIVES, ENGINE, HIERARCHY, Form, Hierarchy
from collectives.calls.pieces import Piece
from collectives.calls.prepare import Shape
from collectives.calls.scheduled import Schedules
from collectives.calls.status import Status
from collectives.calls.targets import another_device
from collectives.calls.work import Waiter, Work
from collectives.native import _engine
from collectives.native.errors import CollectiveError, TransportUnavailable
from collectives.native.spelling import hint
from collectives.schedule.select import Choice, select

_OF_FLOATS: Final = ("sum", "prod", "min", "max", "avg")
_NEWEST: Final = (1 << 30, 1 << 30)  # before ranks have met: a version and a capability that have everything


class StreamCalls:
    """Prepares and issues the calls of one communicator that NCCL runs on arrays in CUDA memory."""

    def __init__(self, group: _engine.Group, calls: Calls, without: str, alone: bool, form: Form) -> None:
        """`without`: why the group does not use NCCL, "" if it may. `alone`: NCCL is the only engine that may run."""
        self._group: Final = group
        self._calls: Final = calls
        self._without = without
        self._alone: Final = alone
        self._form: Final = form
        self._member: _engine.NcclMember | None = None
        self._device: int | None = None  # of NCCL's communicator, once it is made
        self._version, self._capability = _NEWEST
        self._compiler = self._no_compiler = ""
        self._schedules: Final = Schedules(calls.prepare)
        self._issued: Final = Issued()
        self.hierarchy: Hierarchy | None = None  # None: all ranks are on one host

    @property
    def rank(self) -> int:
        return self._calls.rank

    @property
    def alone(self) -> bool:
        """Whether NCCL is the only engine that may run, so that arrays in host memory are refused."""
        return self._alone

    @property
    def without(self) -> str:
        """Why the group does not use NCCL; "" if it does, or has not tried."""
        return self._without

    @property
    def device(self) -> int | None:
        """The device of NCCL's communicator; None before the first call that needs this communicator."""
        return self._device

    @property
    def memory(self) -> int:
        """Bytes of the device's memory that NCCL's communicators hold, including the communicator of this host."""
        within = 0 if self.hierarchy is None else self.hierarchy.memory
        return within + (0 if self._member is None else self._member.memory)

    # --- the choice

    def choose(
        self, name: str, nbytes: int, dtype: str, op: str, *, schedules: bool = False
    ) -> tuple[Choice | None, str]:
        """Returns the table's choice for arrays in CUDA memory, and why NCCL does not run the call ("" if it does).

        The choice is None if no row fits. `schedules`: whether rows count that name "hierarchy" or an algorithm of this
        library.
        """
        against = self._without or self._against(name, dtype, op)
        prepare = self._calls.prepare
        if prepare.table.in_order:
            return (
                None,
                against or "deterministic=True fixes the order of operands, which only calls in host memory keep",
            )

        def usable(algorithm: str) -> bool:
            if algorithm == ENGINE:
                return not against
            return algorithm == "staging" or (schedules and self.has(algorithm, name, dtype, op))

        try:
            choice = select(name, nbytes, prepare.situation, usable, prepare.table, "cuda")
        except LookupError:
            return None, against or "no row of the table is for it"
        return choice, against if choice.algorithm != ENGINE else ""

    def has(self, algorithm: str, name: str, dtype: str, op: str) -> bool:
        """Whether such a call can run by `algorithm`: "hierarchy", "staging" or an algorithm of this library."""
        if algorithm == HIERARCHY:
            return self.hierarchy is not None and not self.hierarchy.why_not(name, dtype, op)
        if not self._schedules.knows(name, algorithm):
            return algorithm == "staging"
        return not self.why_not_scheduled(name, dtype, op, algorithm)

    def decide(
        self,
        name: str,
        nbytes: int,
        dtype: Dtype,
        op: str,
        algorithm: object,
        stream: Any,
        *,
        schedules: bool = False,
        uneven: bool | None = None,
    ) -> str:
        """Returns "nccl" or the name of the algorithm that runs such a call on devices; "" if host memory may be used.

        `schedules`: whether an algorithm of this library may run it. `uneven`: such an algorithm may run it if the call
        names the algorithm; whether the parts of ranks may have different lengths. Raises ValueError or TypeError for
        invalid arguments, TransportUnavailable if NCCL cannot run the call and nothing else may run it.
        """
        if (schedules or uneven is not None) and is_own(algorithm):
            return self._decide_named(name, dtype, op, str(algorithm), stream, bool(uneven))
        choice, against = self.choose(name, nbytes, name_of(dtype), op, schedules=schedules)
        chosen = "" if choice is None else choice.algorithm
        if op and reduced_name(dtype) is None and chosen != ENGINE:
            check_dtype(dtype, f"{against or 'the table chooses host memory'}, and x")
        if isinstance(algorithm, str) and algorithm == ENGINE:
            if against:
                raise ValueError(f"algorithm={ENGINE!r} cannot run this call: {against}")
            return ENGINE
        if chosen in ("", HIERARCHY, "staging"):
            self.check_staged(against or f"the table chooses {chosen or 'host memory'}", stream)
            return ""
        if algorithm != "auto":
            self.check_staged(f"algorithm={algorithm!r} runs on host memory", stream)
            return ""
        return chosen

    def _decide_named(self, name: str, dtype: Dtype, op: str, algorithm: str, stream: Any, uneven: bool) -> str:
        against = self.why_not_scheduled(name, name_of(dtype), op, algorithm, uneven)
        if not against:
            return algorithm
        if op:
            check_dtype(dtype, f"{against}, and x")
        self.check_staged(f"algorithm={algorithm!r} runs on host memory: {against}", stream)
        return ""

    def why_not_scheduled(self, name: str, dtype: str, op: str, algorithm: str, uneven: bool = False) -> str:
        """Returns why the schedule (the steps) of `algorithm` does not run on devices, "" if it does.

        `uneven`: whether the parts of ranks may have different lengths. ValueError for an unknown algorithm, or one
        that does not work for this group; TypeError or ValueError for an invalid op.
        """
        return self._schedules.why_not(name, dtype, op, algorithm, self._without, self._no_compiler, uneven)

    def rounds(self, name: str, algorithm: str) -> int:
        """The number of rounds of messages in which the schedule of `algorithm` runs on devices."""
        return self._schedules.rounds(registry.get(name, algorithm)).rounds

    def _against(self, name: str, dtype: str, op: str) -> str:
        """Why NCCL does not run such a call, "" if it does. TypeError or ValueError if no engine does."""
        if name not in COLLECTIVES:
            return f"NCCL does not run {name}"
        if not op:
            return ""
        code = _engine.OPS.get(op)
        if code is None:
            raise ValueError(f"unknown op {op!r}{hint(op, _engine.OPS)}; there are {', '.join(_engine.OPS)}")
        known = _engine.DTYPES.get(dtype)
        if not (op in _OF_FLOATS if known is None else _engine.supports(known, code)):
            raise TypeError(f"op {op!r} has no meaning for dtype {dtype}")
        return _engine.why_nccl_does_not_reduce(dtype, code, self._version, self._capability)

    def check_staged(self, reason: str, stream: Any) -> None:
        """Raise an error if the user's settings forbid that this call runs on a copy in host memory.

        `reason`: why it cannot run on the device.
        """
        if self._alone:
            raise TransportUnavailable(
                f'transport="{ENGINE}" cannot run this call on rank {self._calls.rank}: {reason}'
            )
        if stream is not None:
            raise ValueError(f"stream is given, but the call runs on a copy in host memory: {reason}")

    # --- NCCL's communicator

    def formed(self, device: int, stream: int, deadline: Deadline, wrong: Exception | None = None) -> str:
        """Make NCCL's communicator if there is none; return why it cannot be used, or "" if it can.

        `wrong`: the error in this rank's call, which is raised. Ranks that wait here for this rank raise Aborted.
        """
        if self._member is None and not self._without:
            try:
                _engine.check_cuda_stream(stream, device)
            except (CollectiveError, ValueError) as error:
                wrong = wrong or error
            formed = self._form(device, wrong, deadline)
            self._without = formed.problem
            if formed.member is not None:
                self._member, self._device = formed.member, device
                self._version, self._capability = formed.version, formed.capability
                self._compiler, self._no_compiler = formed.compiler, formed.no_compiler
        elif wrong is not None:
            raise type(wrong)(f"rank {self._calls.rank}: {wrong}") from wrong
        elif self._device not in (None, device):
            raise another_device(device, self._device, self._calls.rank)
        return self._without

    def connect(
        self,
        kinds: Sequence[str],
        device: int,
        deadline: Deadline,
        wrong: Exception | None = None,
        *,
        needed: bool = True,
    ) -> None:
        """Make NCCL's communicator, and the connections that NCCL's functions `kinds` need; wait for both.

        If the communicator cannot be made: TransportUnavailable if it is `needed`, else nothing is done. `wrong`: as in
        `formed`.
        """
        against = self.formed(device, cuda.LEGACY, deadline, wrong)
        if against and not needed:
            return
        if against or self._member is None:
            raise TransportUnavailable(f"rank {self._calls.rank} has nothing to prepare for NCCL: {against}")
        code = zlib.crc32(f"{ENGINE} prepare {kinds}".encode())
        operation = self._calls.prepare.agreement("barrier", "uint8", "", 0, code)
        self._member.connect(operation, kinds, deadline.left).wait(None)

    # --- operations

    def call(
        self,
        pieces: Sequence[Piece],
        operations: Sequence[_engine.Operation],
        handle: int,
        producer: int,
        written: Sequence[CudaArray],
        result: Any,
        keeps: Iterable[CudaArray | None],
        deadline: Deadline,
    ) -> StreamCall:
        """Returns a call that runs `pieces`, NCCL's calls, in stream `handle` after the work in stream `producer`."""
        assert self._member is not None
        native = self._member.prepare(operations, pieces, handle, producer if producer != handle else None)
        apart = cuda.ordered_apart((*keeps, *written), handle)
        return StreamCall(self, native, handle, tuple(written), result, keeps, deadline, apart)

    def scheduled(
        self,
        shape: Shape,
        x: CudaArray | None,
        made: CudaArray | None,
        algorithm: str,
        handle: int,
        deadline: Deadline,
    ) -> StreamCall:
        """Returns a call that runs the steps of `algorithm` in stream `handle`.

        `x`, `made`: the arrays of this rank and its result, or None.
        """
        assert self._member is not None
        one = self._schedules.get(shape, algorithm)
        inp = 0 if x is None or shape.collective == "broadcast" else x.address
        out = 0 if made is None else made.address
        producer = x.stream if x is not None and x.stream != handle else None
        native = self._member.schedule(one.rounds, inp, out, self._compiler, handle, producer)
        written = () if made is None else (made,)
        result = None if made is None else made.origin
        apart = cuda.ordered_apart((x, made), handle)
        return StreamCall(self, native, handle, written, result, (x, made), deadline, apart)

    def agreement(
        self, name: str, dtype: Dtype, op: str, root: int, count: int, purpose: str = ""
    ) -> _engine.Operation:
        """A barrier in which ranks check that they make the same call.

        `count`: the number of elements, 0 if it may differ between ranks. `purpose`: a text with all else to compare.
        """
        code = zlib.crc32(f"{ENGINE} {name_of(dtype)} {purpose}".encode())
        return self._calls.prepare.agreement(name, reduced_name(dtype) or "uint8", op, max(root, 0), code, count)

    def issue(self, call: StreamCall, seconds: float) -> _engine.StreamTicket:
        """Issue a prepared call, which takes at most `seconds`."""
        return self._issue(call.native, (call,), seconds)

    def issue_messages(self, calls: Sequence[StreamCall], seconds: float) -> _engine.StreamTicket:
        """Issue prepared messages in one stream as one operation of NCCL, so that no message waits for another."""
        assert self._member is not None
        return self._issue(self._member.together([call.native for call in calls]), calls, seconds)

    def _issue(self, native: _engine.NcclCall, calls: Sequence[StreamCall], seconds: float) -> _engine.StreamTicket:
        assert self._member is not None
        for call in calls:
            for array in call.written:
                cuda.begin_write(array)
        ticket = self._member.issue(native, seconds)
        held = [cuda.hold(call.apart, call.stream) for call in calls if call.apart]
        self._issued.add(calls[0].stream, ticket, held)
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


def is_own(algorithm: object) -> bool:
    """Whether `algorithm` can be the name of an algorithm of this library."""
    return isinstance(algorithm, str) and algorithm not in ("auto", ENGINE)


def check_not_first(calls: Calls) -> None:
    """Raises ValueError inside a `group()` block: the call needs an engine that does not exist yet."""
    if calls.outside is not None:
        raise ValueError(
            "the first call on a CUDA device waits for the other ranks, so it cannot be in a group() block: call "
            "comm.prepare() before the block"
        )


class StreamCall(NamedTuple):
    """A call on CUDA memory with checked arguments, which can be issued several times. Implements `Ready`.

    `written`: the arrays that this rank writes. `read`: for a message, the arrays that this rank reads. `keeps`:
    arrays that have to live as long as the call, beside the result. `apart`: those of them that have to be held until
    the stream has passed the call, see `cuda.ordered_apart`.
    """

    calls: StreamCalls
    native: _engine.NcclCall
    stream: int
    written: tuple[CudaArray, ...]
    result: Any
    keeps: Any
    deadline: Deadline
    apart: tuple[CudaArray, ...] = ()
    status: Status | None = None
    received: tuple[int, int] = (-1, 0)  # sender and number of elements of a message
    is_message: bool = False
    read: tuple[CudaArray, ...] = ()

    @property
    def seconds(self) -> float:
        return self.deadline.left

    def run(self, group: _engine.Group, seconds: float) -> Any:
        self.calls.issue(self, seconds)
        return self.delivered()

    def issue(self, seconds: float) -> _engine.StreamTicket:
        """Put the call into its stream; `delivered` then returns its result."""
        return self.calls.issue(self, seconds)

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        deliver: Callable[[], Any] = self.delivered  # it keeps the arrays
        return Work(self.calls.issue(self, seconds), deliver, waiter, owner)

    def delivered(self) -> Any:
        """The result of the call, which is in its stream."""
        if self.status is not None:
            self.status.source, self.status.count = self.received
        return self.result
