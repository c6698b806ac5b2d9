"""Calls on arrays in CUDA memory that NCCL runs, in the order of a stream: which calls these are, and their arguments.

Invariant: the choice between NCCL and a copy in host memory depends only on data that all ranks have, so all ranks
choose the same. Arguments are checked before anything is issued. Nothing here waits for a device.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from collectives.arrays import cuda
from collectives.arrays.array import check_rank
from collectives.arrays.cuda import CudaArray
from collectives.arrays.dtypes import reduced_name
from collectives.calls.external import ARGUMENTS
from collectives.calls.moves import Calls, Deadline
from collectives.calls.work import Waiter, Work
from collectives.native import _engine
from collectives.native.errors import CollectiveError, TransportUnavailable
from collectives.native.spelling import hint
from collectives.schedule.select import Choice, select

ENGINE: Final = "nccl"

# The calls that NCCL runs. Scatter is not among them: only its root knows the shape.
_CALLS: Final = ARGUMENTS.keys() - {"scan", "exscan"}
_ROWS: Final = ("reduce_scatter", "alltoall")  # divide the first axis among ranks


class Form(Protocol):
    """Makes NCCL's communicator, together with all other ranks."""

    def __call__(self, device: int, wrong: Exception | None, deadline: Deadline) -> str:
        """The reason why NCCL cannot be used, the same on every rank; "" if its communicator was made.

        `wrong`: what is wrong with this rank's call. Then this rank raises it, and all others raise Aborted. Also
        raises the errors of the communicator's calls.
        """


class StreamCalls:
    """The calls of one communicator on arrays in CUDA memory."""

    def __init__(self, group: _engine.Group, calls: Calls, without: str, alone: bool, form: Form) -> None:
        """`without`: why the group does not use NCCL, "" if it may. `alone`: NCCL is the only engine that may run."""
        self._group: Final = group
        self._calls: Final = calls
        self._without = without
        self._alone: Final = alone
        self._form: Final = form
        self._device: int | None = None  # of NCCL's communicator, once it is made
        self._issued: Final[deque[tuple[int, _engine.StreamTicket]]] = deque()  # with the stream of each

    @property
    def alone(self) -> bool:
        """Whether NCCL is the only engine that may run, so that arrays in host memory are refused."""
        return self._alone

    @property
    def device(self) -> int | None:
        """The device of NCCL's communicator; None before the first call that needs it."""
        return self._device

    def choose(self, name: str, nbytes: int, dtype: str, op: str) -> tuple[Choice | None, str]:
        """The row of the table that chooses for arrays in CUDA memory, and why it is not NCCL ("" if it is)."""
        against = self._without or self._against(name, dtype, op)
        prepare = self._calls.prepare
        if prepare.table.in_order:
            return None, against or "deterministic=True fixes the order of operands, which only this library keeps"

        def usable(algorithm: str) -> bool:
            return not against if algorithm == ENGINE else True

        try:
            choice = select(name, nbytes, prepare.situation, usable, prepare.table, "cuda")
        except LookupError:
            return None, against or "no row of the table is for it"
        return choice, against if choice.algorithm != ENGINE else ""

    def prepare(
        self, name: str, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...], stream: Any
    ) -> StreamCall | None:
        """The call, ready to be issued, if NCCL runs it; None if it runs on a copy in host memory.

        Raises TypeError or ValueError for invalid arguments, TransportUnavailable if only NCCL may run and cannot.
        """
        if not cuda.on_cuda(x):
            self._refuse_host(name, out, stream)
            return None
        places = ARGUMENTS[name] if name in _CALLS else None
        op, root = ("", -1) if places is None else (args[place] if place >= 0 else None for place in places)
        moved = not op
        if places is None or (op is not None and not isinstance(op, str)):
            self._check_staged(f"NCCL does not run {name}" if places is None else "op is a function", stream)
            return None
        at = -1 if root is None or root == -1 else check_rank(root, self._calls.size, "root")
        writes_x = name == "broadcast" and at != self._calls.rank
        array = (cuda.writing if writes_x else cuda.reading)(x, "x", moved=moved)
        dtype = reduced_name(array.dtype) or "uint8"
        algorithm = args[-1]
        choice, against = self.choose(name, array.nbytes, dtype, op or "")
        named = isinstance(algorithm, str) and algorithm == ENGINE
        if named and against:
            raise ValueError(f"algorithm={ENGINE!r} cannot run this call: {against}")
        if not named and (choice is None or choice.algorithm != ENGINE):
            self._check_staged(against or "the table chooses staging", stream)
            return None
        if not named and algorithm != "auto":
            self._check_staged(f"algorithm={algorithm!r} runs on host memory", stream)
            return None
        if out is not None and not cuda.on_cuda(out):
            raise ValueError("x is on a CUDA device and out is in host memory: give out on the same device")
        if self._calls.outside is not None:
            raise ValueError("calls that NCCL runs cannot be in a group() block: make them before or after it")
        deadline = self._calls.limit(timeout)
        handle = array.stream if stream is None else cuda.handle_of(stream)
        target = self._target(name, array, out, at, handle)
        against = self._formed(array.device, handle, deadline)
        if against:
            self._check_staged(against, stream)
            return None
        return StreamCall(self, name, array, target, op or "", at, handle, deadline)

    def _refuse_host(self, name: str, out: Any, stream: Any) -> None:
        if stream is not None:
            raise ValueError("stream is given, but x is not on a CUDA device")
        if self._alone and name in _CALLS:
            raise TypeError(
                f'x is in host memory, but this communicator was made with transport="{ENGINE}": give an array on a '
                'CUDA device, or make the communicator with transport="auto"'
            )
        if not self._without and out is not None and cuda.on_cuda(out):
            raise ValueError("out is on a CUDA device and x is in host memory: give x on the same device")

    def _check_staged(self, reason: str, stream: Any) -> None:
        """Raise if the call must not run on a copy in host memory, as it has to for `reason`."""
        if self._alone:
            raise TransportUnavailable(
                f'transport="{ENGINE}" cannot run this call on rank {self._calls.rank}: {reason}'
            )
        if stream is not None:
            raise ValueError(f"stream is given, but the call runs on a copy in host memory: {reason}")

    def _formed(self, device: int, stream: int, deadline: Deadline) -> str:
        if self._device is None:
            wrong: Exception | None = None
            try:
                _engine.check_cuda_stream(stream, device)
            except (CollectiveError, ValueError) as error:
                wrong = error
            self._without = self._form(device, wrong, deadline)
            if not self._without:
                self._device = device
        elif self._device != device:
            raise ValueError(
                f"x is on device {device}, but rank {self._calls.rank} of this communicator uses device "
                f"{self._device}: one communicator has one device on each rank (comm.dup() gives another)"
            )
        return self._without

    def _against(self, name: str, dtype: str, op: str) -> str:
        """Why NCCL does not run such a call, "" if it does. TypeError or ValueError if no engine does."""
        if name not in _CALLS:
            return f"NCCL does not run {name}"
        if not op:
            return ""
        code = _engine.OPS.get(op)
        if code is None:
            raise ValueError(f"unknown op {op!r}{hint(op, _engine.OPS)}; there are {', '.join(_engine.OPS)}")
        if not _engine.supports(_engine.DTYPES[dtype], code):
            raise TypeError(f"op {op!r} has no meaning for dtype {dtype}")
        return _engine.why_nccl_does_not_reduce(_engine.DTYPES[dtype], code) or ""

    def _target(self, name: str, x: CudaArray, out: Any, root: int, stream: int) -> CudaArray | None:
        """The array for the result; None if this rank gets none."""
        size, is_root = self._calls.size, root == self._calls.rank
        shape = x.shape
        if name == "broadcast":
            return x
        if name in ("reduce", "gather") and not is_root:
            return None
        if name in ("allgather", "gather"):
            shape = (size, *x.shape)
        if name in _ROWS and (not x.shape or x.shape[0] % size):
            raise ValueError(f"{name} divides the first axis of x among {size} ranks, but x has shape {x.shape}")
        if name == "reduce_scatter":
            shape = (x.shape[0] // size, *x.shape[1:])
        if out is None:
            return cuda.fresh(x, shape, stream)
        target = cuda.writing(out, "out", moved=True)
        if target.shape != shape or target.dtype != x.dtype:
            raise ValueError(
                f"out has shape {target.shape} and dtype {target.dtype}, but the result has {shape} and {x.dtype}"
            )
        if target.device != x.device:
            raise ValueError(f"x is on device {x.device} and out on device {target.device}")
        same = target.address == x.address and name in ("allreduce", "reduce")
        if not same and target.address < x.address + x.nbytes and x.address < target.address + target.nbytes:
            raise ValueError(f"x and out share memory, but {name} does not work like that")
        return target

    def issue(self, call: StreamCall, seconds: float) -> _engine.StreamTicket:
        """Issue a prepared call, which takes at most `seconds`."""
        x, out, calls = call.x, call.out, self._calls
        dtype = reduced_name(x.dtype) or "uint8"
        operation = calls.prepare.agreement(
            call.name, dtype, call.op, max(call.root, 0), zlib.crc32(f"{ENGINE} {x.dtype}".encode()), x.size
        )
        count = x.size // calls.size if call.name in _ROWS else x.size
        while self._issued and self._issued[0][1].done():
            self._issued.popleft()
        if call.writes is not None:
            cuda.begin_write(call.writes)
        ticket = self._group.issue_nccl(
            operation,
            x.address,
            0 if out is None else out.address,
            count,
            _engine.DTYPES[dtype],
            x.dtype.itemsize,
            _engine.OPS[call.op or "sum"],
            max(call.root, 0),
            call.stream,
            x.stream if x.stream != call.stream else None,
            seconds,
        )
        self._issued.append((call.stream, ticket))
        return ticket

    def synchronize(self, stream: Any, deadline: Deadline | None) -> None:
        """Wait on the host for what was issued, in `stream` only if it is given; raises its first error."""
        wanted = None if stream is None else cuda.handle_of(stream)
        for used, ticket in tuple(self._issued):
            if wanted is None or used == wanted:
                ticket.wait(None if deadline is None else deadline.left)

    def close(self) -> None:
        """Forget what was issued; called when the communicator is closed, which has ended all of it."""
        self._issued.clear()

    @property
    def unfinished(self) -> int:
        """How many of the issued operations are not complete."""
        return sum(not ticket.done() for _, ticket in tuple(self._issued))


class StreamCall(NamedTuple):
    """A call on CUDA memory with checked arguments, which can be issued several times. Implements `Ready`."""

    calls: StreamCalls
    name: str
    x: CudaArray
    out: CudaArray | None
    op: str
    root: int
    stream: int
    deadline: Deadline

    @property
    def writes(self) -> CudaArray | None:
        """The array that this rank writes."""
        return self.out

    @property
    def result(self) -> Any:
        return None if self.out is None else self.out.origin

    @property
    def seconds(self) -> float:
        return self.deadline.left

    def run(self, group: _engine.Group, seconds: float) -> Any:
        self.calls.issue(self, seconds)
        return self.result

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        deliver: Callable[[], Any] = lambda: self.result  # noqa: E731  # it keeps the arrays
        return Work(self.calls.issue(self, seconds), deliver, waiter, owner)
