"""Runs the calls of one communicator, one at a time, with a short path for repeated calls.

Invariant: a repeated call is recognised by its shape, dtype, op, algorithm and memory layout, which are compared every
time. Its arguments are not checked further.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import numpy as np

from collectives.arrays import cuda
from collectives.arrays.array import Array, Dtype, check_number, check_timeout
from collectives.arrays.cuda import on_cuda
from collectives.arrays.wire import AUTO, WireChoice, WireName
from collectives.calls import formats
from collectives.calls.call import Call, Ready
from collectives.calls.external import Engines, ExternalCall, Side
from collectives.calls.fusion import Fusion
from collectives.calls.gate import Gate
from collectives.calls.hierarchical import HierarchicalCalls
from collectives.calls.leading import CALLS as LED
from collectives.calls.leading import ENGINE as LEADER
from collectives.calls.leading import LeaderCalls, Led
from collectives.calls.moves import Calls, Deadline
from collectives.calls.nccl import ENGINE as NCCL
from collectives.calls.nccl import KINDS
from collectives.calls.on_device import DeviceCalls
from collectives.calls.op import Reduction
from collectives.calls.part_way import PartWay
from collectives.calls.passing import PassingCalls
from collectives.calls.passing_many import AnyMany, PassingMany
from collectives.calls.plan import Plan, StepwisePlan, check_planned
from collectives.calls.prepare import Preparer
from collectives.calls.reductions import ReductionCalls
from collectives.calls.repeated import Form
from collectives.calls.staged import STAGED, StagedCalls
from collectives.calls.streamed import StreamCall, StreamCalls
from collectives.calls.targets import only_on_devices
from collectives.calls.together import Together
from collectives.calls.two_levels import Between
from collectives.calls.wired import WiredCall, WiredCalls
from collectives.calls.work import Ticket, Tickets, Waiter, Work
from collectives.engines import Engine
from collectives.native import _engine
from collectives.native._engine import Group, Repeater
from collectives.native.errors import CollectiveError, OpTimeout, TransportUnavailable, name_rank
from collectives.native.spelling import hint
from collectives.schedule.layout import Layout
from collectives.schedule.table import Situation

P = ParamSpec("P")
T = TypeVar("T")
Seconds: TypeAlias = "float | None"
Build: TypeAlias = "Callable[..., Ready]"  # (x, out, timeout, *args)


class Runner:
    """Runs the collectives and messages of one communicator: checks arguments, and chooses the engine for each call.

    `group`: the C++ engine's group of ranks. Whoever made the group closes it, not the Runner.
    """

    def __init__(
        self,
        group: Group,
        rank: int,
        situation: Situation,
        layout: Layout,
        name: str,
        timeout: float,
        memory: Callable[[int, Dtype], Array],
        forms: Mapping[str, Form],
        prepare: Preparer | None = None,
    ) -> None:
        """`memory(count, dtype)` allocates an array, if possible in memory that other ranks can read directly.

        `forms`: by name, the methods whose repeated calls skip Python code; `repeaters` has the same order. `prepare`:
        the Preparer of another communicator with the same ranks and algorithm table, to share; None for a new one.
        """
        self.timeout: Final = timeout
        self.gate: Final = Gate(name)
        self.calls: Final = Calls(group, prepare or Preparer(rank, situation, layout), timeout)
        self._group: Final = group
        self._waiter: Final = Waiter()
        self.reductions: Final = ReductionCalls(self.calls)
        self._memory: Final = memory
        self.engines = Engines((), self.calls)
        self.streams: StreamCalls | None = None  # None: no array is on a device that this process can use
        self.leading: LeaderCalls | None = None  # None: no rank leads calls on a device
        self.why_no_device: Callable[[], str] = lambda: "it is closed"  # why neither of both is there
        self._on_device: DeviceCalls | None = None
        # The rest is made when it is first needed, so that a communicator that makes few kinds of calls is small.
        self._forms: Final = forms
        self.repeaters: Final[list[Repeater | None]] = [None] * len(forms)
        self._made_staged: StagedCalls | None = None
        self._made_passing: PassingCalls | None = None
        self._made_passing_many: PassingMany | None = None
        self._made_fusion: Fusion | None = None
        self._made_wired: WiredCalls | None = None
        self._block: Together  # the `together` block that this thread is inside
        self._unfinished: tuple[Together, ...] = ()
        self._started: deque[Ticket] | None = None  # background operations not known to have ended
        self._failure: BaseException | None = None  # the error of the first of them that failed

    def use_engines(self, engines: Sequence[Engine], side: Runner) -> None:
        """From now on, also use `engines`: objects of other packages that run whole collectives.

        `side`: the Runner of a second communicator of the same ranks, for the engines' own messages.
        """
        self.engines = Engines(engines, self.calls, side.side())

    def use_streams(self, streams: StreamCalls, hierarchical: HierarchicalCalls | None = None) -> None:
        """Let NCCL run calls on arrays in CUDA memory, if all ranks can use it.

        `hierarchical`: prepares calls that use NCCL only inside hosts.
        """
        self.streams = streams
        streams.hierarchy = hierarchical
        self._on_device = DeviceCalls(streams, self.calls, hierarchical)

    def prepare_devices(
        self, kinds: Sequence[str], device: int | None, dtype: Dtype, op: str, timeout: float | None
    ) -> None:
        """Make the engine by which one rank runs all calls, or NCCL's communicator, connected for functions `kinds`.

        `dtype`, `op`: of the reductions whose kernels are compiled.
        """
        self.calls.prepare.check_op_name(op)
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"NCCL has no {kind!r}{hint(kind, KINDS)}; there are {', '.join(KINDS)}")
        with self.gate:
            if self.leading is None and self.streams is None:
                raise TransportUnavailable(
                    f"rank {self.calls.rank}: this process uses no CUDA device: {self.why_no_device()}"
                )
            number, wrong = self._device_or_error(device)
            deadline = self.calls.limit(timeout)
            if self.leading is not None and self.leading.connect(number, deadline, wrong):
                self.leading.compile(dtype, op)
                others = [kind for kind in kinds if kind not in LED]
                if others and self.streams is not None:
                    self.streams.connect(others, number, deadline, needed=False)
                return
            if self.streams is None:
                if wrong is not None:
                    raise wrong
                raise TransportUnavailable("this communicator uses no NCCL, and no rank leads: see explain")
            self.streams.connect(kinds, number, deadline, wrong)

    def prepare_messages(self, device: int | None, timeout: float | None) -> None:
        """Make NCCL's communicator, connected for messages, whoever runs collectives. Called if there are `streams`.

        TransportUnavailable on all ranks, with one reason, if it cannot be made.
        """
        assert self.streams is not None
        with self.gate:
            number, wrong = self._device_or_error(device)
            self.streams.connect(("send", "recv"), number, self.calls.limit(timeout), wrong)

    def _device_or_error(self, device: Any) -> tuple[int, Exception | None]:
        """`_device`, or 0 and the error, of which other ranks, that wait for this one, have to learn, too."""
        try:
            return self._device(device), None
        except (TypeError, ValueError) as error:
            return 0, error

    def _device(self, device: Any) -> int:
        """Returns the number of the device that this rank is to use: `device`, or if it is None, the one in use now."""
        if device is None:
            engines = (calls.device for calls in (self.leading, self.streams) if calls is not None)
            used = [_engine.current_cuda_device(), *engines]
            found = next((number for number in used if number is not None), None)
            if found is None:
                raise ValueError("this thread uses no CUDA device: give device=, or choose one by cupy or torch before")
            return found
        number = check_number(device, "device")
        try:
            count = len(_engine.cuda_devices())
        except CollectiveError:  # of which ranks learn when they compare their devices
            return number
        if not 0 <= number < count:
            raise ValueError(f"there is no device {number}: this process has {count}, see CUDA_VISIBLE_DEVICES")
        return number

    def run(self, build: Callable[P, Ready], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Runs, on this thread, the call that `build(*args, **kwargs)` checks and prepares; returns its result."""
        if self._in_block():
            return self._block.add(build(*args, **kwargs))
        with self.gate:
            call = build(*args, **kwargs)
            return call.run(self._group, call.seconds)

    def _chosen(self, build: Build, x: Any, out: Any, timeout: float | None, *args: Any, stream: Any = None) -> Ready:
        """The call, prepared for another package's engine if one accepts it, a leader, NCCL, or the C++ engine.

        `build` prepares it for the C++ engine.
        """
        try:
            return self._prepared(build, x, out, timeout, *args, stream=stream)
        except (TransportUnavailable, TypeError, ValueError) as error:
            self._not_prepared(error, stream, x, out)
            raise

    def _not_prepared(self, error: Exception, stream: Any, *arrays: Any) -> None:
        """Adds this rank and the device to an error about arrays on a device, or about their stream.

        If the device has no memory for a result, other ranks, which may have begun the call, learn of it, too.
        """
        on_device = [x for x in arrays if on_cuda(x)]
        if on_device or stream is not None or isinstance(error, TransportUnavailable):
            name_rank(self.calls.rank, error, cuda.device_of(on_device[0]) if on_device else None)
        if isinstance(error, cuda.NoRoom) and self.calls.size > 1:
            self._group.abandon("Aborted", str(error))

    def _prepared(self, build: Build, x: Any, out: Any, timeout: float | None, *args: Any, stream: Any) -> Ready:
        external = self.engines.prepare(build.__name__, x, out, timeout, args) if self.engines else None
        if external is not None:
            return external
        leading = self.leading
        if leading is not None and (
            type(x) is not np.ndarray or out is not None or stream is not None or leading.alone
        ):
            led = leading.prepare(build.__name__, x, out, timeout, args, stream)
            if led is not None:
                return led
        if self._on_device is None:
            if stream is not None:
                raise ValueError(f"stream is given, but this process uses no CUDA device: {self.why_no_device()}")
        elif type(x) is not np.ndarray or out is not None or stream is not None or self._on_device.alone:
            streamed = self._on_device.prepare(build.__name__, x, out, timeout, args, stream)
            if streamed is not None:
                return streamed
        if build.__name__ in STAGED and self._can_stage(x, out):
            staged = self._staged.prepare(build.__name__, x, out, timeout, args)
            if staged is not None:
                return staged
        if type(x) is not np.ndarray or out is not None:
            passing = self._passing.prepare(build, x, out, (timeout, *args))
            if passing is not None:
                return passing
        return build(x, out, timeout, *args)

    def _can_stage(self, x: Any, out: Any) -> bool:
        """Whether a call may be staged in slices: all ranks have arrays on devices, and it is not part of a block."""
        is_known = self.leading is not None and self.leading.compared
        return is_known and on_cuda(x) and (out is None or on_cuda(out)) and not self._in_block()

    def forget_staging(self) -> None:
        """Release the host memory through which large device arrays are copied. Called after the last call."""
        for made in (self._made_staged, self._made_passing):
            if made is not None:
                made.close()

    def between_hosts(self) -> Between:
        """Returns this communicator, which has a rank of each host, for calls of another one in two levels."""
        return Between(self._group, self._staged)

    def side(self) -> Side:
        """Returns this communicator as a `Side`, on which other packages' engines send messages of their own."""
        return Side(self._group, self.calls)

    @property
    def _staged(self) -> StagedCalls:
        if self._made_staged is None:
            self._made_staged = StagedCalls(self.calls, self._memory)
        return self._made_staged

    @property
    def _passing(self) -> PassingCalls:
        if self._made_passing is None:
            self._made_passing = PassingCalls(self.calls, self._memory)
        return self._made_passing

    def call(self, build: Build, x: Any, out: Any, timeout: float | None, *args: Any, stream: Any = None) -> Any:
        """Runs on this thread the call that `build` prepares, or lets another engine run it; returns the result."""
        return self.run(self._chosen, build, x, out, timeout, *args, stream=stream)

    def start(self, owner: object, build: Build, *args: Any, stream: Any = None) -> Work[Any]:
        """Prepares a call by `build(*args)` and starts it in the background; returns its `Work`, a handle to wait for.

        The `Work` keeps the object `owner` alive.
        """
        if self._in_block():
            return self._block.start(self._chosen(build, *args, stream=stream), self._waiter, owner)
        with self.gate:
            call = self._chosen(build, *args, stream=stream)
            work = call.start(self._group, call.seconds, self._waiter, owner)
            return work if isinstance(call, StreamCall | Led) else self._noted(work)

    @property
    def encoded(self) -> int:
        """Bytes of memory that are kept for calls with a wire format."""
        return 0 if self._made_wired is None else self._made_wired.kept

    def wire(self, wire: WireChoice, name: str, x: Any, out: Any, op: Reduction = "sum") -> WireName | None:
        """Returns the format in which a call with `wire` is sent; None if it is sent as it is, as "auto" allows.

        `name`: of the method.
        """
        if wire != AUTO:
            return wire
        if any(calls is not None and calls.alone for calls in (self.leading, self._on_device)):
            return None
        return formats.chosen(self.calls.prepare, name, x, out, op)

    def run_wired(self, name: str, *args: Any, stream: Any) -> Any:
        """Runs a call with a wire format, which `WiredCalls` prepares by its method `name`; returns its result."""
        return self.run(self._wired_builder(name, stream), *args)

    def start_wired(self, owner: object, name: str, *args: Any, stream: Any) -> Work[Any]:
        """`run_wired` in the background."""
        build = self._wired_builder(name, stream)
        if self._in_block():
            return self._block.start(build(*args), self._waiter, owner)
        with self.gate:
            call = build(*args)
            return self._noted(call.start(self._group, call.seconds, self._waiter, owner))

    def _wired_builder(self, name: str, stream: Any) -> Callable[..., WiredCall]:
        if stream is not None:
            raise ValueError("stream is given, but wire is for arrays in host memory")
        if any(calls is not None and calls.alone for calls in (self.leading, self._on_device)):
            raise ValueError("wire is for arrays in host memory, but this communicator's are on devices")
        if self._made_wired is None:
            self._made_wired = WiredCalls(self.calls, self._memory)
        build: Callable[..., WiredCall] = getattr(self._made_wired, name)
        return build

    @contextmanager
    def together(self) -> Iterator[None]:
        """Returns a context manager: calls that this thread makes in the `with` block are run together at its end."""
        with self.gate:
            block = self._block = Together()
            self.gate.block = threading.get_ident()
            self.calls.outside = self.gate.check_outside
            try:
                yield
            except BaseException as error:
                block.forget(error)
                raise
            finally:
                self.gate.block = self.calls.outside = None
            try:
                block.run(self._group)
            except KeyboardInterrupt:
                self._unfinished += (block,)  # the operations continue, and use the arrays of the block
                raise

    def synchronize(self, stream: Any, timeout: float | None) -> None:
        """Waits for all operations that run in the background or on CUDA streams; raises their first error.

        `stream`: wait only for operations on this stream. `timeout`: in seconds; when it has passed, OpTimeout is
        raised. None for each operation's own timeout.
        """
        self.gate.check()
        self.gate.check_outside()
        deadline = None if timeout is None else Deadline(check_timeout(timeout))
        on_devices = [calls for calls in (self.leading, self.streams) if calls is not None]
        for calls in on_devices:
            try:
                calls.synchronize(stream, deadline)
            except OpTimeout:
                if self._group.broken is None:
                    raise self._still_running(timeout) from None
                raise
        if stream is not None and not on_devices:
            raise ValueError("stream is given, but this communicator uses no CUDA device")
        if stream is not None:
            if self._group.broken is not None:
                raise self._group.broken
            return
        started = self._started
        while started:
            ticket = started[0]
            try:
                ticket.wait(None if deadline is None else deadline.left)
            except Exception as error:
                if not ticket.done():
                    raise self._still_running(timeout) from None
                self._failure = self._failure or error
            started.popleft()
        failure, self._failure = self._failure or self._group.broken, None
        if failure is not None:
            raise failure

    def _still_running(self, timeout: float | None) -> OpTimeout:
        left = sum(not ticket.done() for ticket in tuple(self._started or ()))
        left += sum(calls.unfinished for calls in (self.leading, self.streams) if calls is not None)
        return OpTimeout(
            f"communicator {self.gate.name!r}: synchronize waited {timeout} s, and {left} of the operations that rank "
            f"{self.calls.rank} has started are not complete; they go on"
        )

    def _noted(self, work: Work[T]) -> Work[T]:
        """Returns `work`, after adding its ticket (the engine's handle) to those for which `synchronize` waits."""
        if work.ticket is None:
            return work
        started = self._started
        if started is None:
            started = self._started = deque()
        while started and started[0].done():
            try:
                started[0].wait(0.0)
            except Exception as error:
                self._failure = self._failure or error
            started.popleft()
        started.append(work.ticket)
        return work

    def _in_block(self) -> bool:
        return self.gate.block is not None and self.gate.block == threading.get_ident()

    def plan(self, owner: object, build: Build, x: Any, out: Any, timeout: float | None, *args: Any) -> Plan:
        """Prepares a call once, by `build(x, out, timeout, *args)`; returns a `Plan` that runs it any number of times.

        The plan keeps the object `owner` alive.
        """
        with self.gate:
            call = self._chosen(build, x, out, timeout, *args)
        if isinstance(call, ExternalCall) and call.result is None:
            raise ValueError(f"engine {call.engine!r} runs this call: a plan of it needs out=")
        if not isinstance(call, StreamCall | Led | ExternalCall) and (on_cuda(x) or on_cuda(out)):
            raise TypeError("a plan of arrays on a CUDA device needs NCCL, which does not run this call: see explain")
        seconds = self.timeout if timeout is None else timeout
        stepwise = self._stepwise(call, seconds, owner)
        if not isinstance(call, Call) or not call.repeatable:
            return stepwise
        if call.out is not None and call.target is not None and call.out is not call.result:
            raise ValueError("a plan writes the array that it was given, but that is read-only")
        return _engine.plan(
            self._group, self.gate.latch, seconds, call.operation, call.inp, call.out, call.result, call.copies,
            self.gate.refuse, stepwise.start, owner,
        )  # fmt: skip

    def plan_wired(self, owner: object, name: str, x: Any, out: Any, timeout: float | None, *args: Any) -> Plan:
        """Prepares a call with a wire format once, for any number of runs."""
        build = self._wired_builder(name, None)
        with self.gate:
            call = build(x, out, timeout, *args)
        return self._stepwise(call, call.seconds, owner)

    def _stepwise(self, call: Ready, seconds: float, owner: object) -> StepwisePlan:
        def again() -> Any:
            with self.gate:
                return call.run(self._group, seconds)

        def start() -> Work[Any]:
            with self.gate:
                work = call.start(self._group, seconds, self._waiter, owner)
                return work if isinstance(call, StreamCall | Led) else self._noted(work)

        return StepwisePlan(call.result, again, start, owner)

    @property
    def _fusion(self) -> Fusion:
        if self._made_fusion is None:
            self._made_fusion = Fusion(self.reductions, self._memory)
        return self._made_fusion

    def _many_on_device(self, stream: Any, arrays: Any, *args: Any) -> Any:
        """The allreduce of a list of arrays, prepared for NCCL; None if it runs on host memory."""
        try:
            return self._many_streamed(stream, arrays, *args)
        except (TransportUnavailable, TypeError, ValueError) as error:
            self._not_prepared(error, stream, *_listed(arrays))
            raise

    def _many_streamed(self, stream: Any, arrays: Any, out: Any, timeout: float | None, *args: Any) -> Any:
        found = [on_cuda(x) for x in _listed(arrays)]
        if not any(found):
            if stream is not None:
                raise ValueError("stream is given, but the arrays are not on a CUDA device")
            for transport, calls in ((LEADER, self.leading), (NCCL, self._on_device)):
                if calls is not None and calls.alone:
                    raise only_on_devices(transport, self.calls.rank, "the arrays are")
            return None
        if not all(found):
            raise ValueError(
                f"array {found.index(False)} of the list is in host memory, and others on a CUDA device: give all on "
                "one device"
            )
        op, _, algorithm = args
        if self.leading is not None:
            led = self.leading.many(arrays, out, timeout, op, algorithm, stream)
            if led is not None:
                return led
        if self._on_device is None:
            return None
        return self._on_device.many(arrays, out, timeout, op, algorithm, stream)

    def run_many(self, stream: Any, *args: Any) -> list[Any]:
        """Runs an allreduce of a list of arrays on this thread; `args` are the arguments of `Fusion.prepare`."""
        if self._in_block():
            streamed = self._many_on_device(stream, *args)
            if streamed is not None:
                added: list[Any] = self._block.add(streamed)
                return added
            return self._block.add_many(self._prepared_many(*args))
        with self.gate:
            streamed = self._many_on_device(stream, *args)
            if streamed is not None:
                results: list[Any] = streamed.run(self._group, streamed.seconds)
                return results
            return self._run_many(self._prepared_many(*args))

    def _prepared_many(self, arrays: Any, *args: Any) -> AnyMany:
        """The allreduce of a list of arrays through host memory. `args`: the other arguments of `Fusion.prepare`."""
        try:
            if any(map(on_cuda, _listed(arrays)[:1])):
                if self._made_passing_many is None:
                    self._made_passing_many = PassingMany(self.calls, self._fusion, self._passing.memory)
                passing = self._made_passing_many.prepare(arrays, *args)
                if passing is not None:
                    return passing
            return self._fusion.prepare(arrays, *args)
        except (TransportUnavailable, TypeError, ValueError) as error:
            self._not_prepared(error, None, *_listed(arrays))
            raise

    def _run_many(self, many: AnyMany) -> list[Any]:
        with self._part_way(many) as parts:
            return many.run(self._group, parts)

    def _part_way(self, many: AnyMany) -> PartWay:
        return PartWay(self._group, self.calls.rank, "allreduce_many", len(many.steps), "buckets")

    def start_many(self, owner: object, stream: Any, *args: Any) -> Work[list[Any]]:
        """`run_many` in the background."""
        if self._in_block():
            streamed = self._many_on_device(stream, *args)
            if streamed is not None:
                return self._block.start(streamed, self._waiter, owner)
            return self._block.start_many(self._prepared_many(*args), self._waiter, owner)
        with self.gate:
            streamed = self._many_on_device(stream, *args)
            if streamed is not None:
                work: Work[list[Any]] = streamed.start(self._group, streamed.seconds, self._waiter, owner)
                return work
            return self._start_many(self._prepared_many(*args), owner)

    def _start_many(self, many: AnyMany, owner: object) -> Work[list[Any]]:
        with self._part_way(many) as parts:
            tickets = many.start(self._group, parts)
        return self._noted(Work(Tickets(tickets), many.finish, self._waiter, owner))

    def plan_many(self, owner: object, arrays: Any, timeout: float | None, *args: Any) -> Plan:
        """Prepares an allreduce of a list of NumPy arrays, in place, once for any number of runs.

        A run waits for the previous one. `args`: the other arguments of `Fusion.prepare`. The plan keeps `owner` alive.
        """
        _check_all_planned(arrays)
        with self.gate:
            many = self._fusion.prepare(arrays, arrays, timeout, *args).kept()
        results = [target.result for target in many.targets]
        return self._in_turn(results, lambda: self._run_many(many), lambda: self._start_many(many, owner), owner)

    def plan_many_wired(self, owner: object, arrays: Any, timeout: float | None, *args: Any) -> Plan:
        """`plan_many` with a wire format. `args`: the other arguments of `WiredCalls.allreduce_many`."""
        _check_all_planned(arrays)
        build = self._wired_builder("allreduce_many", None)
        with self.gate:
            call = build(arrays, arrays, timeout, *args)

        def start() -> Work[Any]:
            return self._noted(call.start(self._group, call.seconds, self._waiter, owner))

        return self._in_turn(call.result, lambda: call.run(self._group, call.seconds), start, owner)

    def _in_turn(
        self, results: Any, run: Callable[[], Any], start: Callable[[], Work[Any]], owner: object
    ) -> StepwisePlan:
        """A plan each of whose runs waits for the previous one, whose results may be its arrays."""
        last: list[Work[Any]] = []

        def finish_last() -> None:
            while last:
                last.pop().wait()

        def again() -> Any:
            finish_last()
            with self.gate:
                return run()

        def begin() -> Work[Any]:
            finish_last()
            with self.gate:
                work = start()
            last.append(work)
            return work

        return StepwisePlan(results, again, begin, owner)

    def _repeater(self, name: str, x: Array, out: Array | None) -> Repeater:
        """The native object that repeats calls of method `name` without Python code, made when first needed.

        `x`, `out`: the arrays of every such call, if the method has no array among its parameters (as `barrier`).
        """
        index = tuple(self._forms).index(name)
        made = self.repeaters[index]
        if made is None:
            form = self._forms[name]
            arrays = None if form.has_array or out is None else (x, out)
            made = _engine.repeater(self._group, self.gate.latch, self.timeout, form.positional, form.keywords, arrays)
            self.repeaters[index] = made
        return made

    def remembered(
        self,
        build: Build,
        x: Any,
        out: Any,
        timeout: float | None,
        *args: Any,
        stream: Any = None,
        more: tuple[Any, ...] = (),
    ) -> Any:
        """Runs the call that `build(x, out, timeout, *args)` prepares; C++ code runs later calls with equal arguments.

        `stream`: for an array on a CUDA device, the stream to use; None for the current stream of the array's library.
        `more`: what else the method was called with that has to be equal. Returns the call's result.
        """
        return self.run(self._remember, build, x, out, timeout, args, stream, more)

    def _remember(
        self,
        build: Build,
        x: Any,
        out: Any,
        timeout: float | None,
        args: tuple[Any, ...],
        stream: Any,
        more: tuple[Any, ...],
    ) -> Ready:
        call = self._chosen(build, x, out, timeout, *args, stream=stream)
        if not isinstance(call, Call):
            return call
        target = call.target
        # If x was staged, the call is not remembered: another array like x might be used in place.
        staged = target is not None and call.out is not x and (target.origin is x or target.result is x)
        if type(x) is np.ndarray and call.repeatable and not staged and None not in args:  # recv from any rank
            copied = call.copies and call.out is x
            wants = _engine.NO_INPUT if call.inp is None else _engine.COPIED if copied else _engine.AS_IT_IS
            result = None if target is None else x if call.out is x else target.host.shape
            repeater, keys = self._repeater(build.__name__, x, out), (*args, *more)
            _engine.remember(repeater, x, keys, out is x, call.operation, wants, result)
        return call


def _check_all_planned(arrays: Any) -> None:
    """Raises TypeError or ValueError if a plan could use one of the arrays of a list only through a copy."""
    for i, array in enumerate(_listed(arrays)):
        check_planned(array, f"array {i} of the list")


def _listed(arrays: Any) -> Sequence[Any]:
    return arrays if isinstance(arrays, list | tuple) else ()
