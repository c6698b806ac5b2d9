"""A rank of a peer (another measured system): runs the benchmark's commands under the peer's own Python.

Invariant: between commands the process sleeps in a read, and it ends when the benchmark ends. The code that times
calls, makes data and checks results is the same as on the benchmark's own ranks. The process is started as

    python -c BOOT FOLDER PEER ADDRESS PRIVATE RANKS [RANK]

BOOT is the code below, which imports this module from FOLDER. PEER is the peer's name. Rank 0 of the benchmark listens
at ADDRESS. PRIVATE is a folder for the peer's ranks. RANKS is their number. RANK is missing if a launcher assigns it.

A command is a JSON object {"do": ...}. So is the answer; it has "unsupported" or "error" if the command cannot be run.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives.bench.cases import Case
from collectives.bench.channel import connect
from collectives.bench.data import Data
from collectives.bench.loop import elapsed, sample
from collectives.bench.peers import module
from collectives.bench.sequence import bind
from collectives.bench.values import touched

if TYPE_CHECKING:
    from collectives.bench.peers import FrameworkRank, Member, Task

JOIN = 60.0
IDLE = 3600.0  # seconds without a command; if the benchmark ends, the wait ends at once

# Makes this folder importable as `collectives.bench`, but not the packages beside it: the peer's Python must import
# its own packages.
BOOT = (
    "import sys, types; c = types.ModuleType('collectives'); c.__path__ = []; sys.modules['collectives'] = c; "
    "b = types.ModuleType('collectives.bench'); b.__path__ = [sys.argv.pop(1)]; c.bench = b; "
    "sys.modules['collectives.bench'] = b; "
    "from collectives.bench.peers.worker import main; main()"
)


class OnArrays:
    """A collective of another library, such as Open MPI, that is ready to be run and timed.

    The benchmark fills the arrays with test data and checks the results. The other library only runs the collective.
    """

    def __init__(self, member: Member, case: Case) -> None:
        try:
            dtype = np.dtype(case.dtype)
        except TypeError as error:
            raise NotImplementedError(f"NumPy alone has no {case.dtype}") from error
        self._case, self._rank = case, member.rank
        self._inp = touched(member.empty(case.elements_in, dtype))
        self._out = touched(member.empty(case.elements_out, dtype))
        self.call, self._result = bind(case, self._inp, self._out, member.bind)

    def renew(self) -> None:
        self._inp.fill(1)

    def wrong(self, salt: int) -> int:
        if self._case.collective == "barrier":
            return 0
        data = Data(self._case, self._inp.dtype, self._rank, salt)
        if self._result is not None:
            data.spoil(self._result)
        data.fill(self._inp)
        returned = self.call()
        return data.wrong(np.asarray(memoryview(returned)) if self._result is None else self._result)


class Worker:
    def __init__(self, member: Member | FrameworkRank) -> None:
        self._member = member
        self._task: Task | None = None
        self._call: Callable[[], Any] = _nothing
        self._renew: Callable[[], Any] | None = None
        self._settle: Callable[[], Any] | None = None  # waits until calls are complete, where they return before
        self._row = 1
        self._times: Callable[[int], list[float]] | None = None  # instead of our clock, if the task has its own

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "about":
                return {"versions": _versions() | getattr(self._member, "versions", {})}
            case "prepare":
                reported = command["case"]
                self._row = command["row"]
                self._prepare(
                    Case(**{**reported, "parts": tuple(reported["parts"])}), command["warmup"], command["renew"]
                )
                return {}
            case "wrong":
                assert self._task is not None
                return {"wrong": self._task.wrong(command["salt"])}
            case "elapsed":
                barrier, iterations = self._member.barrier, command["iterations"]
                if self._times is not None:
                    return {"seconds": sum(self._times(iterations))}
                return {"seconds": elapsed(self._call, barrier, iterations, self._renew, self._row, self._settle)}
            case "turn":
                if self._times is not None:
                    return {"samples": self._times(command["iterations"])}
                self._repeat(command["warmup"])
                barrier, iterations = self._member.barrier, command["iterations"]
                times = sample(self._call, barrier, iterations, self._renew, self._row, self._settle)
                return {"samples": times.tolist()}
            case "finish":
                self._task, self._call, self._renew, self._settle, self._times = None, _nothing, None, None, None
                return {}
        raise ValueError(f"unknown command {command}")

    def _prepare(self, case: Case, warmup: int, renew: bool) -> None:
        member: Any = self._member
        task: Task = member.task(case) if hasattr(member, "task") else OnArrays(member, case)
        self._renew = getattr(task, "renew", None) if renew else None
        if renew and self._renew is None:
            raise NotImplementedError("it has its input where it cannot be written anew")
        self._task, self._call, self._settle = task, task.call, getattr(task, "settle", None)
        self._times = getattr(task, "times", None)
        self._repeat(max(1, warmup) if self._times is None else 1)

    def _repeat(self, calls: int) -> None:
        for _ in range(calls):
            self._member.barrier()
            self._call()
            if self._settle is not None:
                self._settle()


def _versions() -> dict[str, str]:
    """The version of each installed package; if it is installed twice, the version that an import would load."""
    found: dict[str, str] = {}
    for one in distributions():
        found.setdefault(one.name, one.version)
    return {name: version for name, version in found.items() if name not in ("pip", "setuptools")}


def _nothing() -> None: ...


def main() -> None:
    name, address, private, ranks, *rest = sys.argv[1:]
    member: Member | FrameworkRank = importlib.import_module(module(name)).connect(
        private, int(ranks), int(rest[0]) if rest else None
    )
    channel = connect(address, member.rank, JOIN)
    worker = Worker(member)
    while True:
        try:
            command = channel.receive(IDLE)
        except ConnectionError:
            break
        if command["do"] == "end":
            break
        try:
            answer = worker.handle(command)
        except NotImplementedError as error:
            answer = {"unsupported": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".strip().splitlines()[0]}
        channel.send(answer, JOIN)
    member.close()


if __name__ == "__main__":
    main()
