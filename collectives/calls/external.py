"""Calls that an engine of another package runs, and the choice between such engines and the C++ engine.

Invariant: every such call is an operation of the communicator like any other. It has a sequence number, a deadline, and
an entry under its engine's name in the list of recent operations. Ranks compare fingerprints of the call before the
engine starts. If the engine fails on one rank, all ranks raise the same error, and the communicator is unusable.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import device
from collectives.arrays.array import check_rank
from collectives.arrays.memory import HOST, Memory, memory_of
from collectives.calls.call import Ready
from collectives.calls.moves import Calls, Deadline
from collectives.calls.prepare import Shape
from collectives.calls.work import Waiter, Work
from collectives.engines import Collective, Engine, Task
from collectives.engines.engine import LateTask
from collectives.native import _engine
from collectives.native.errors import Aborted, CollectiveError, OpTimeout

# For each call: the positions of op and root among the arguments after x, out and timeout; -1 if it has none.
ARGUMENTS: Final = {
    "allreduce": (0, -1),
    "reduce": (0, 1),
    "broadcast": (-1, 0),
    "allgather": (-1, -1),
    "gather": (-1, 0),
    "reduce_scatter": (0, -1),
    "alltoall": (-1, -1),
    "scan": (0, -1),
    "exscan": (0, -1),
}
_OUTCOME: Final = 512  # bytes in which a rank describes the result of its engine
_GRACE: Final = 5.0  # seconds to exchange these outcomes after the call's deadline
_HURRY: Final = 1.0  # seconds for the same exchange if the user has interrupted the engine


class Side(NamedTuple):
    """A second communicator of the same ranks, on which engines of other packages send messages of their own.

    So these messages cannot be confused with the messages of the user's calls.
    """

    group: _engine.Group
    calls: Calls


class Choice(NamedTuple):
    engine: Engine
    reason: str


class Engines:
    """The engines of other packages (objects that run whole collectives) that a communicator may use; usually none."""

    def __init__(self, engines: Sequence[Engine], calls: Calls, side: Side | None = None) -> None:
        """`side`: None only if there are no engines."""
        self._engines: Final = tuple(engines)
        self._calls: Final = calls
        self._worker: Final = None if side is None else Worker(side)

    @property
    def all(self) -> tuple[Engine, ...]:
        return self._engines

    def __bool__(self) -> bool:
        return bool(self._engines)

    def choose(self, collective: str, nbytes: int, memory: Memory, algorithm: str = "auto") -> Choice | None:
        """Chooses the engine of another package for a collective: the first that accepts it; None if no engine does.

        Returns the engine, and a text that says why it accepts the collective. If the method returns None, the C++
        engine runs the collective. `nbytes`: the size of the array. `algorithm`: "auto", or the name of an engine or
        algorithm. Raises ValueError if `algorithm` names an engine that does not accept the collective.
        """
        if self._calls.prepare.table.in_order:  # deterministic: only the C++ engine has a fixed order of operands
            return None
        for engine in self._engines:
            if algorithm not in ("auto", engine.name):
                continue
            reason = engine.accepts(collective, nbytes, memory, self._calls.size)
            if reason is not None:
                return Choice(engine, reason)
            if algorithm == engine.name:
                raise ValueError(
                    f"engine {engine.name!r} does not run {collective} of {nbytes} bytes in {memory} memory"
                )
        return None

    def prepare(self, name: str, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...]) -> Ready | None:
        """Returns an object that runs a collective by an engine of another package; None if no such engine accepts it.

        `name`: the collective. `args`: its arguments other than `x`, `out` and `timeout`. Raises TypeError or
        ValueError for invalid arguments.
        """
        places = ARGUMENTS.get(name)
        if places is None:
            return None
        op, root = (args[place] if place >= 0 else None for place in places)
        if op is not None and not isinstance(op, str):  # op is a function, which only this library calls
            return None
        memory = memory_of(x)
        if out is not None and memory_of(out).kind != memory.kind:
            return None  # the C++ engine stages arrays that are not contiguous
        shape, dtype = _description(x, memory)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        choice = self.choose(name, nbytes, memory, args[-1])
        if choice is None:
            return None
        assert self._worker is not None
        at = -1 if root is None else check_rank(root, self._calls.size, "root")
        call = Collective(name, dtype.name, shape, op or "", at)
        task = choice.engine.collective(call, memory)
        return ExternalCall(
            choice.engine.name, call, task, x, out, self._calls, self._worker, self._calls.limit(timeout)
        )

    def explain(self, collective: str, nbytes: int) -> str:
        """Returns a text that says which engine of another package runs a collective, for host and for CUDA memory.

        The text is empty if no engine of another package runs it.
        """
        lines = []
        for memory in (HOST, Memory("cuda")):
            choice = self.choose(collective, nbytes, memory)
            if choice is not None:
                lines.append(f"  engine      {choice.engine.name}, for {memory} memory: {choice.reason}")
        return (
            "\n".join([f"{collective} of {nbytes} bytes among {self._calls.size} ranks", *lines, "", ""])
            if lines
            else ""
        )


class ExternalCall:
    """A collective with its arrays, which an engine of another package runs, any number of times."""

    def __init__(
        self,
        engine: str,
        call: Collective,
        task: Task | LateTask,
        x: Any,
        out: Any,
        calls: Calls,
        worker: Worker,
        deadline: Deadline,
    ) -> None:
        self.engine: Final = engine
        self.call: Final = call
        self.task: Final = task
        self.x: Final = x
        self.out: Final = out
        self._calls: Final = calls
        self._worker: Final = worker
        self._deadline: Final = deadline

    @property
    def result(self) -> Any:
        return self.out

    @property
    def seconds(self) -> float:
        return self._deadline.left

    def run(self, group: _engine.Group, seconds: float) -> Any:
        execution = self._begin(group, seconds)
        self._worker.run(execution)
        return execution.wait_for_result()

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        execution = self._begin(group, seconds)
        self._worker.start(execution)
        return Work(execution.ticket, execution.wait_for_result, waiter, owner)

    def _begin(self, group: _engine.Group, seconds: float) -> _Execution:
        deadline = Deadline(seconds)
        return _Execution(self, group.start_generalized(self._agreement(), deadline.left, self.engine), deadline)

    def _agreement(self) -> _engine.Operation:
        """A barrier that carries the call's fingerprint, by which ranks check that they all make the same call."""
        text = f"engine {self.engine} {self.call.shape}"
        return self._calls.prepare.agreement(
            self.call.name, self.call.dtype, self.call.op, max(self.call.root, 0), zlib.crc32(text.encode())
        )


class _Execution:
    """One execution of a call: ranks compare their calls, then the engine runs, then ranks exchange the outcomes."""

    def __init__(self, of: ExternalCall, ticket: _engine.GeneralizedTicket, deadline: Deadline) -> None:
        self._of: Final = of
        self.ticket: Final = ticket
        self._deadline: Final = deadline
        self._result: Any = None
        self._error: BaseException | None = None  # of the engine on this rank

    def wait_for_result(self) -> Any:
        """Waits until another package's engine has ended the collective; returns its result.

        If the engine has failed on any rank, all ranks raise an error. The error's `__cause__` is the exception that
        the engine raised on this rank, if it did.
        """
        try:
            self.ticket.wait(None)
        except CollectiveError as cause:
            if self._error is not None:
                raise cause from self._error
            raise
        return self._result

    def run(self, side: Side) -> None:
        """Lets another package's engine run the collective, and tells the other ranks how it ended.

        `side`: a second communicator of the same ranks, for the engine's own messages. Errors of the engine are only
        told to all ranks, and not raised here. Exceptions such as KeyboardInterrupt are raised here too.
        """
        interruption: BaseException | None = None
        try:
            if not self.ticket.wait_until_begun():
                return
            self._result = self._work(side)
        except Exception as error:
            self._error = error
        except BaseException as error:
            self._error = interruption = error
        try:
            problem = self._settle(side, _HURRY if interruption else max(self._deadline.left, _GRACE))
        except CollectiveError as error:  # a rank is lost, or its engine does not return
            problem = error
        if problem is None:
            self.ticket.complete()
        else:
            ranks = [*getattr(problem, "ranks", ()), *getattr(problem, "late", ())]
            self.ticket.fail(type(problem).__name__, str(problem), ranks)
        if interruption is not None:
            raise interruption

    def _work(self, side: Side) -> Any:
        of, deadline = self._of, self._deadline
        ranks = _Ranks(side, deadline)
        if hasattr(of.task, "run"):
            return of.task.run(of.x, of.out, ranks)
        ended = threading.Event()
        outcome: list[tuple[Any, BaseException | None]] = []

        def complete(result: Any, error: BaseException | None) -> None:
            outcome.append((result, error))
            ended.set()

        of.task.start(of.x, of.out, ranks, complete)
        if not ended.wait(deadline.left):
            raise OpTimeout(
                f"{of.call.name}: engine {of.engine!r} did not complete on rank {ranks.rank} in time", [ranks.rank]
            )
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def _settle(self, side: Side, seconds: float) -> CollectiveError | None:
        """Exchange outcomes; returns None if all ranks succeeded, else the error of the lowest rank that failed."""
        error, of = self._error, self._of
        if isinstance(error, CollectiveError) and side.group.broken is not None:
            return error  # the broken side communicator reports it to the other ranks
        text = "" if error is None else f"{type(error).__name__}: {error}"
        mine = np.zeros(_OUTCOME, np.uint8)
        encoded = (
            f"{'t' if isinstance(error, OpTimeout) else 'e'}{text}".encode()[:_OUTCOME] if error is not None else b""
        )
        mine[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        everyones = np.empty((side.calls.size, _OUTCOME), np.uint8)
        shape = Shape(
            "allgather", mine.dtype, _OUTCOME, everyones.size, _OUTCOME, purpose=f"outcome of engine {of.engine}"
        )
        operation = side.calls.prepare.collective(shape, "auto").operation
        side.group.run(operation, mine, everyones, seconds)
        outcomes = {r: row.tobytes().rstrip(b"\0").decode(errors="replace") for r, row in enumerate(everyones)}
        failed = {rank: words for rank, words in outcomes.items() if words}
        if not failed:
            return None
        rank, words = next(iter(failed.items()))
        message = f"{of.call.name}: engine {of.engine!r} failed on rank {rank}: {words[1:]}"
        if words.startswith("t"):
            return OpTimeout(message, [r for r, w in failed.items() if w.startswith("t")])
        return Aborted(message)


class Worker:
    """Runs one communicator's calls by engines of other packages, one at a time, in the order in which they were made.

    A blocking call runs on the caller's thread if no other call is in progress. All other calls run on a background
    thread, which exists only while there are calls to run.
    """

    def __init__(self, side: Side) -> None:
        self._side: Final = side
        self._lock: Final = threading.Lock()
        self._waiting: Final[deque[_Execution]] = deque()
        self._busy = False

    def run(self, execution: _Execution) -> None:
        """Runs a collective by another package's engine on this thread, or queues it if another is in progress.

        `execution`: the collective and its arrays.
        """
        with self._lock:
            if self._busy:
                self._waiting.append(execution)
                return
            self._busy = True
        try:
            execution.run(self._side)
        finally:
            self._serve_elsewhere()

    def start(self, execution: _Execution) -> None:
        with self._lock:
            self._waiting.append(execution)
            if self._busy:
                return
            self._busy = True
        self._serve_elsewhere()

    def _serve_elsewhere(self) -> None:
        with self._lock:
            if not self._waiting:
                self._busy = False
                return
        threading.Thread(target=self._serve, name="collectives-engines", daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy = False
                    return
                execution = self._waiting.popleft()
            with contextlib.suppress(BaseException):  # raised again where the result is read
                execution.run(self._side)


class _Ranks:
    """The messages between ranks that an engine may use inside a call; implements `collectives.engines.Ranks`.

    They are collectives of the second communicator, `side`, and end at the deadline of the user's call.
    """

    def __init__(self, side: Side, deadline: Deadline) -> None:
        self._side: Final = side
        self._deadline: Final = deadline

    @property
    def rank(self) -> int:
        return self._side.calls.rank

    @property
    def size(self) -> int:
        return self._side.calls.size

    @property
    def seconds_left(self) -> float:
        return self._deadline.left

    def gather(self, x: Any, root: int = 0) -> Any:
        return self._run(self._side.calls.gather, x, root)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        return self._run(self._side.calls.broadcast, x, root)

    def allgather(self, x: Any) -> Any:
        return self._run(self._side.calls.allgather, x)

    def _run(self, build: Callable[..., Ready], x: Any, *args: Any) -> Any:
        left = self._deadline.left
        return build(x, None, left, *args, "auto").run(self._side.group, left)


def _description(x: Any, memory: Memory) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if memory.kind != "host":
        return device.describe(x, "x", moved=True)
    array = np.asarray(x)
    return array.shape, array.dtype
