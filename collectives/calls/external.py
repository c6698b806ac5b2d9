"""Calls that an engine of another package runs, and the choice between such engines and the native one.

Invariant: every such call is an operation of the communicator like any other. It has its place in the order of calls, a
sequence number and a fingerprint that ranks compare before the engine starts, and a deadline. A failure of the engine
on one rank is an error with the same cause on all, and breaks the communicator.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays import device
from collectives.arrays.array import check_rank
from collectives.arrays.memory import HOST, Memory, memory_of
from collectives.calls.call import Ready
from collectives.calls.gate import Gate
from collectives.calls.moves import Calls, Deadline
from collectives.calls.prepare import Shape
from collectives.calls.work import Waiter, Work
from collectives.engines import Collective, Engine, Task
from collectives.engines.engine import LateTask
from collectives.native import _engine
from collectives.native.errors import Aborted, CollectiveError, OpTimeout

# By name of the call: positions of op and root among its arguments, after x, out and timeout; -1 if it has none.
_ARGUMENTS: Final = {
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
_GRACE: Final = 5.0  # seconds for that, if the call's own time has passed


class Choice(NamedTuple):
    engine: Engine
    reason: str


class Engines:
    """The engines of one communicator besides the native one; usually none."""

    def __init__(self, engines: Sequence[Engine], calls: Calls, gate: Gate) -> None:
        self._engines: Final = tuple(engines)
        self._calls: Final = calls
        self._gate: Final = gate

    @property
    def all(self) -> tuple[Engine, ...]:
        return self._engines

    def __bool__(self) -> bool:
        return bool(self._engines)

    def choose(self, collective: str, nbytes: int, memory: Memory, algorithm: str = "auto") -> Choice | None:
        """The engine that runs such a call and why; None for the native one."""
        if self._calls.prepare.table.in_order:  # deterministic: only the native engine has a fixed order of operands
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
        """The call, if another engine than the native one runs it. TypeError, ValueError for invalid arguments."""
        places = _ARGUMENTS.get(name)
        if places is None:
            return None
        op, root = (args[place] if place >= 0 else None for place in places)
        if op is not None and not isinstance(op, str):  # a function: only this library calls it
            return None
        memory = memory_of(x)
        if out is not None and memory_of(out).kind != memory.kind:
            return None  # the native engine stages arrays that are not contiguous
        shape, dtype = _description(x, memory)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        choice = self.choose(name, nbytes, memory, args[-1])
        if choice is None:
            return None
        at = -1 if root is None else check_rank(root, self._calls.size, "root")
        call = Collective(name, dtype.name, shape, op or "", at)
        task = choice.engine.collective(call, memory)
        return ExternalCall(choice.engine.name, call, task, x, out, self._calls, self._gate, self._calls.limit(timeout))

    def explain(self, collective: str, nbytes: int) -> str:
        """For host and device memory: the other engine that runs such a call, a line each; empty if there is none."""
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
    """One such call, ready to be run once."""

    def __init__(
        self,
        engine: str,
        call: Collective,
        task: Task | LateTask,
        x: Any,
        out: Any,
        calls: Calls,
        gate: Gate,
        deadline: Deadline,
    ) -> None:
        self.engine: Final = engine
        self.call: Final = call
        self._task: Final = task
        self._x: Final = x
        self._out: Final = out
        self._calls: Final = calls
        self._gate: Final = gate
        self._deadline = deadline

    @property
    def result(self) -> Any:
        return self._out

    @property
    def seconds(self) -> float:
        return self._deadline.left

    def run(self, group: _engine.Group, seconds: float) -> Any:
        deadline = self._deadline = Deadline(seconds)
        group.run(self._agreement(), _zero(), _zero(), deadline.left)
        result: Any = None
        error: Exception | None = None
        try:
            result = self._work(group, deadline)
        except CollectiveError as failure:
            if group.broken is not None:
                raise
            error = failure
        except Exception as failure:
            error = failure
        self._settle(group, error, deadline)
        return result

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        result = self.run(group, seconds)
        return Work(None, lambda: result, waiter, owner)

    def _agreement(self) -> _engine.Operation:
        """A barrier in the name of the call, by which ranks check whether they made the same call."""
        text = f"engine {self.engine} {self.call.shape}"
        return self._calls.prepare.agreement(
            self.call.name, self.call.dtype, self.call.op, max(self.call.root, 0), zlib.crc32(text.encode())
        )

    def _work(self, group: _engine.Group, deadline: Deadline) -> Any:
        ranks = _Ranks(group, self._calls, deadline)
        if hasattr(self._task, "run"):
            return self._task.run(self._x, self._out, ranks)
        ended = threading.Event()
        outcome: list[tuple[Any, BaseException | None]] = []

        def complete(result: Any, error: BaseException | None) -> None:
            outcome.append((result, error))
            ended.set()

        self._task.start(self._x, self._out, ranks, complete)
        if not ended.wait(deadline.left):
            raise OpTimeout(
                f"{self.call.name}: engine {self.engine!r} did not complete on rank {self._calls.rank} in time",
                [self._calls.rank],
            )
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def _settle(self, group: _engine.Group, error: Exception | None, deadline: Deadline) -> None:
        """Return if the engine succeeded on all ranks; else raise the first rank's error, on every rank."""
        text = "" if error is None else f"{type(error).__name__}: {error}"
        mine = np.zeros(_OUTCOME, np.uint8)
        encoded = (
            f"{'t' if isinstance(error, OpTimeout) else 'e'}{text}".encode()[:_OUTCOME] if error is not None else b""
        )
        mine[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        everyones = np.empty((self._calls.size, _OUTCOME), np.uint8)
        shape = Shape(
            "allgather", mine.dtype, _OUTCOME, everyones.size, _OUTCOME, purpose=f"outcome of engine {self.engine}"
        )
        operation = self._calls.prepare.collective(shape, "auto").operation
        group.run(operation, mine, everyones, max(deadline.left, _GRACE))
        outcomes = {r: row.tobytes().rstrip(b"\0").decode(errors="replace") for r, row in enumerate(everyones)}
        failed = {rank: words for rank, words in outcomes.items() if words}
        if not failed:
            return
        rank, words = next(iter(failed.items()))
        message = f"{self.call.name}: engine {self.engine!r} failed on rank {rank}: {words[1:]}"
        late = [r for r, w in failed.items() if w.startswith("t")]
        cause = OpTimeout(message, late) if words.startswith("t") else Aborted(message)
        self._gate.break_with(cause)
        group.close()
        raise cause from error


class _Ranks:
    """See `collectives.engines.Ranks`: the group's own calls, without the checks that exclude other threads."""

    def __init__(self, group: _engine.Group, calls: Calls, deadline: Deadline) -> None:
        self._group: Final = group
        self._calls: Final = calls
        self._deadline: Final = deadline

    @property
    def rank(self) -> int:
        return self._calls.rank

    @property
    def size(self) -> int:
        return self._calls.size

    @property
    def seconds_left(self) -> float:
        return self._deadline.left

    def gather(self, x: Any, root: int = 0) -> Any:
        return self._run(self._calls.gather, x, root)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        return self._run(self._calls.broadcast, x, root)

    def allgather(self, x: Any) -> Any:
        return self._run(self._calls.allgather, x)

    def _run(self, build: Callable[..., Ready], x: Any, *args: Any) -> Any:
        left = self._deadline.left
        return build(x, None, left, *args, "auto").run(self._group, left)


def _description(x: Any, memory: Memory) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if memory.kind != "host":
        return device.describe(x, "x", moved=True)
    array = np.asarray(x)
    return array.shape, array.dtype


def _zero() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.zeros(1, np.uint8)
