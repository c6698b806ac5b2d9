"""A process group of torch that uses a communicator: its lifetime, how its operations run, and its properties.

Invariant: operations start in the order in which they are called, from any thread. A synchronous operation runs on the
calling thread, and the call returns when the operation is done. Under torch's profiler, which records only
asynchronous operations, a synchronous operation runs in the background, and the caller waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

from collectives.calls.plan import Plan
from collectives.core.communicator import Communicator
from collectives.torch.autoload import DEVICES
from collectives.torch.backend import ForwardingBackend
from collectives.torch.batches import Batches
from collectives.torch.futures import Completer
from collectives.torch.meeting import Options, Place, by_nccl
from collectives.torch.on_streams import OnStream, Streams, run
from collectives.torch.operations import Operation
from collectives.torch.profiling import NAME, Entry, profiles, recorded
from collectives.torch.repeated import Repeated
from collectives.torch.works import Done, Pending

_DONE: Final = Done()


Noted = TypeVar("Noted", Pending, OnStream)


class Group(dist.ProcessGroup):
    """A torch process group without collectives: its communicator and options, and how it runs operations and ends.

    The subclass `CollectivesProcessGroup` adds the collectives.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float, options: Options, name: str) -> None:
        super().__init__(rank, size)  # the only constructor for Python
        self._place: Final = Place(store, timeout, options)
        self._rank: Final = rank
        self._size: Final = size
        self._name = name
        self._description = "undefined"
        self._timeout: float | None = None
        self._sequence = 0
        self._lock: Final = threading.Lock()
        self._completer: Final = Completer("collectives futures")
        self._together: list[Pending | OnStream] | None = None
        self._streams: Final = Streams()
        self._batches: Final = Batches()
        self._gathered: list[Operation] = []  # messages of CUDA tensors that are being coalesced
        by = by_nccl(options)
        self._comm: Final = self._place.form(rank, size, by_nccl=by)
        self._messages_by_nccl: Final = by and size > 1
        self._repeated: Final = Repeated(self._comm)

    @property
    def communicator(self) -> Communicator:
        """The communicator on which this process group runs its operations, from any thread.

        For other uses make a duplicate of the communicator with its method `dup`.
        """
        return self._comm

    # --- how operations run

    def _run(self, opts: Any, title: str, inputs: Sequence[Any], operation: Operation) -> Any:
        """Run an operation and return a torch `Work`. Torch's profiler shows `title` and `inputs`."""
        if operation.device is not None:
            return self._run_on_device(opts, title, inputs, (operation,), operation.device)
        limit = self._limit(opts)
        if not opts.asyncOp and self._together is None and not profiles():
            self._call(operation, limit)
            return _DONE
        with recorded(title, inputs) as record:
            work = self._started(operation, limit, record)
        if not opts.asyncOp and self._together is None:
            work.settle()
            return _DONE
        return self._noted(work)

    def _planned(self, tensors: Any, opts: Any) -> Plan | None:
        """The plan that sums a tensor, or a list of tensors; None if there is none.

        There is none either while torch's profiler records operations.
        """
        if profiles():
            return None
        find = self._repeated.plan_of_many if isinstance(tensors, list | tuple) else self._repeated.plan
        with self._lock:
            return find(tensors, opts.reduceOp, self._limit(opts))

    def _run_plan(self, opts: Any, tensors: Sequence[Any], plan: Plan) -> Any:
        """Run a plan that sums `tensors` in place, and return a torch `Work`."""
        if not opts.asyncOp and self._together is None:
            with self._lock:
                self._sequence += 1
                plan()
            return _DONE
        with self._lock:
            self._sequence += 1
            started = plan.start()
        work = Pending(started, tensors, None, self._completer)
        work.end_with_backward()
        return self._noted(work)

    def _run_all(
        self,
        opts: Any,
        title: str,
        inputs: Sequence[Any],
        operations: Sequence[Operation],
        then: Callable[[], None] | None = None,
    ) -> Any:
        """Run several operations and return one torch `Work` for all; `then` is called when all have ended."""
        if len(operations) == 1 and then is None:
            return self._run(opts, title, inputs, operations[0])
        if operations and operations[0].device is not None:
            return self._run_on_device(opts, title, inputs, operations, operations[0].device)
        limit = self._limit(opts)
        if not opts.asyncOp and self._together is None and not profiles():
            for operation in operations:
                self._call(operation, limit)
            if then is not None:
                then()
            return _DONE
        after = None if then is None else lambda _: then()
        tensors = [tensor for operation in operations for tensor in operation.tensors]
        with recorded(title, inputs) as record:
            works = [self._started(operation, limit) for operation in operations]
        work = Pending(Several(works), tensors, after, self._completer, record=record)
        work.end_with_backward()
        if not opts.asyncOp and self._together is None:
            work.settle()
            return _DONE
        return self._noted(work)

    def _run_on_device(
        self, opts: Any, title: str, inputs: Sequence[Any], operations: Sequence[Operation], device: Any
    ) -> Any:
        """Run operations on CUDA tensors, in the order of streams."""
        self._issue_gathered()
        limit = self._limit(opts)

        def start(operation: Operation) -> Any:
            name, args, _, _, out, _ = operation
            more = {key: value for key, value in {"out": out, "timeout": limit}.items() if value is not None}
            with self._lock:
                self._sequence += 1
                return getattr(self._comm, f"{name}_async")(*args, **more)

        with torch.profiler.record_function(f"{NAME}:{title}"):
            if not opts.asyncOp and self._together is None:
                run(operations, start)
                return _DONE
            return self._noted(self._streams.start(operations, partial(run, start=start), device, inputs))

    def _message(self, operation: Operation) -> OnStream | None:
        """Run a message of a CUDA tensor by NCCL, together with the others of its batch.

        Returns None if more messages of the batch are to come: torch then returns one `Work` for the whole batch, as it
        does for its own NCCL.
        """
        if self._together is not None:
            self._gathered.append(operation)
            return None
        operations = self._batches.complete(operation)
        return self._issued(operations) if operations else None

    def _issue_gathered(self) -> None:
        """Issue the messages that have been coalesced so far."""
        operations, self._gathered = self._gathered, []
        if operations:
            self._noted(self._issued(operations))

    def _issued(self, messages: Sequence[Operation]) -> OnStream:
        """Issue messages of CUDA tensors as one operation of NCCL, in which no message waits for another."""
        more = {} if self._timeout is None else {"timeout": self._timeout}

        def issue(operations: Sequence[Operation]) -> list[Any]:
            with self._lock, self._comm.group():
                works = [getattr(self._comm, f"{one.name}_async")(*one.args, **more) for one in operations]
            with torch.no_grad():
                for one in operations:
                    if one.after is not None:
                        one.after(None)
            return works

        tensors = [tensor for one in messages for tensor in one.tensors]
        title = messages[0].name if len(messages) == 1 else "coalesced"
        with torch.profiler.record_function(f"{NAME}:{title}"):
            return self._streams.start(messages, issue, messages[0].device, tensors)

    def _call(self, operation: Operation, limit: float | None) -> None:
        name, args, _, after, out, _ = operation
        more: dict[str, Any] = {}
        if out is not None:
            more["out"] = out
        if limit is not None:  # repeated calls without this argument are faster
            more["timeout"] = limit
        with self._lock:
            self._sequence += 1
            result = getattr(self._comm, name)(*args, **more)
        if after is not None:
            after(result)

    def _started(self, operation: Operation, limit: float | None, record: Entry | None = None) -> Pending:
        name, args, tensors, after, out, _ = operation
        return self.started(name, *args, tensors=tensors, finish=after, out=out, timeout=limit, record=record)

    def started(
        self,
        name: str,
        *args: Any,
        tensors: Sequence[Any],
        finish: Callable[[Any], None] | None,
        record: Entry | None = None,
        **more: Any,
    ) -> Pending:
        """Starts the communicator's method `name` in the background; returns torch's `Work` for it.

        `args`, `more`: the method's arguments. `tensors`: the tensors that the operation uses. `finish` is called with
        the method's result. `record`: the entry of the operation in torch's profiler.
        """
        given = {key: value for key, value in more.items() if value is not None}
        with self._lock:
            self._sequence += 1
            started = getattr(self._comm, f"{name}_async")(*args, **given)
        work = Pending(started, tensors, finish, self._completer, record=record)
        work.end_with_backward()
        return work

    def _limit(self, opts: Any) -> float | None:
        given = opts.timeout.total_seconds()
        return given if given >= 0 else self._timeout  # torch's default is negative

    def _noted(self, work: Noted) -> Noted:
        if self._together is not None:
            self._together.append(work)
        return work

    def _start_coalescing(self, device: Any) -> None:
        self._together, self._gathered = [], []

    def _end_coalescing(self, device: Any) -> Any:
        try:
            self._issue_gathered()
        finally:
            found, self._together = self._together or [], None
        if not found:
            return _DONE
        works = [work for work in found if isinstance(work, Pending)]
        on_streams = [work for work in found if isinstance(work, OnStream)]
        if works and on_streams:
            raise ValueError("operations that are coalesced need tensors on one type of device")
        if on_streams:
            return on_streams[-1].joined(on_streams[:-1])
        tensors = [tensor for work in works for tensor in work.tensors]
        return Pending(Several(works), tensors, None, self._completer)

    # --- lifetime

    def shutdown(self) -> None:
        """Ends the process group; operations in progress fail with Aborted. Does not wait for other ranks."""
        self._comm.close()
        self._completer.close()

    def abort(self) -> None:
        self.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of operations that have none of their own."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    # --- what torch calls

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device(kind) for kind in DEVICES if kind == "cpu" or torch.cuda.is_available()]

    def _get_backend(self, device: Any) -> Any:
        kinds = [one.type for one in self._device_types]
        if torch.device(device).type not in kinds:
            where = "in host memory" + (" and on CUDA devices" if "cuda" in kinds else "")
            raise RuntimeError(f"the backend {NAME!r} is for tensors {where}, and has nothing for {device}")
        return ForwardingBackend(self)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives that this rank has called."""
        return self._sequence

    @property
    def options(self) -> Any:
        """The options object that torch has for this process group; torch reads the group's timeout from it."""
        seconds = self._place.timeout if self._timeout is None else self._timeout
        return torch._C._distributed_c10d.Backend.Options(NAME, timedelta(seconds=seconds))

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None: ...

    def _enable_collectives_timing(self) -> None: ...

    def get_group_store(self) -> Any:
        return self._place.store

    def name(self) -> str:
        return NAME

    getBackendName = name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}: {self._comm!r}>"


class Several:
    """A handle for several operations in progress, with the methods of `collectives.Work`."""

    def __init__(self, works: Sequence[Pending]) -> None:
        self._works: Final = works

    def done(self) -> bool:
        return all(work.is_completed() for work in reversed(self._works))

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all operations have ended, for at most `timeout` seconds in total.

        If `timeout` is None, waits for each operation until its own deadline. Raises the error of the first operation
        in the list that failed, or OpTimeout.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for work in self._works:
            work.settle(None if end is None else max(0.0, end - time.monotonic()))

    def result(self) -> None:
        self.wait()
