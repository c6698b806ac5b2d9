"""One run of a case, seen from the runner: its ranks as processes, and what can be done to them.

Invariant: the runner has one thread when it forks. When a run is over none of its processes is left. All times are of
CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import secrets
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from collectives.bench.chaos.case import Case, Unit
from collectives.bench.chaos.rank import Rank, act, become_fresh, hear_warnings
from collectives.bench.namespaces import Host

NOT_FOR_RANKS: Final[list[int]] = []  # descriptors of the runner, which forked ranks close
STOP: Final[list[bool]] = []  # not empty: this process has been asked to end
START: Final = 30.0  # seconds that ranks may take to reach the point at which something is injected
_CLONE_NEWNET: Final = 0x40000000


class NotReached(Exception):
    """The ranks did not get to the point at which the fault was to be injected."""


@dataclass(slots=True)
class Member:
    """One rank of a job into which a fault is injected; used in the process that started the ranks.

    The object has the reports that the rank has sent. `status` is the exit code, negative for a signal, or None while
    the rank runs.
    """

    number: int
    process: int
    socket: socket.socket
    events: list[dict[str, Any]] = field(default_factory=list)
    status: int | None = None
    ended: float = 0.0
    unread: bytes = b""
    stopped: bool = False

    def event(self, name: str) -> dict[str, Any] | None:
        """Return this rank's first report with the name `name`, or None if there is no such report."""
        return next((event for event in self.events if event["event"] == name), None)

    def all(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]

    @property
    def outcome(self) -> dict[str, Any] | None:
        """The report that this rank has sent about its error or its success, or None if it has not sent one."""
        return self.event("error") or self.event("result")


class Run:
    """One run with an injected fault: starts the ranks of a small job, injects the fault and collects reports."""

    def __init__(self, case: Case, unit: Unit, store: str, hosts: Sequence[Host], server: Any = None) -> None:
        self.case: Final = case
        self.unit: Final = unit
        self.rng: Final = random.Random(unit.seed)
        size = self.rng.choice(case.sizes)
        self.size: Final = unit.ranks or size
        self.victims: Final = tuple(sorted(self.rng.sample(range(self.size), min(case.chosen, self.size))))
        self.values: Final = case.values
        self.hosts = hosts
        self.server: Final = server
        self.moments: Final[dict[str, float]] = {}
        # By rank: whom its error may name; ranks that are not in it may name the victims.
        self.nameable: Final[dict[int, set[int]]] = {}
        self.members: list[Member] = []
        self.undo: Final = contextlib.ExitStack()  # what has to be repaired after the run
        self.killed: Final[set[int]] = set()  # whose end is the runner's doing
        self._store = store
        self._secret = secrets.token_bytes(32)
        self._name = f"chaos-{secrets.token_hex(6)}"
        self._ending = False
        self._poll = select.poll()
        self._by_descriptor: dict[int, Member] = {}

    # --- the ranks

    def fork(self) -> None:
        """Fork a process for each rank. Each process waits until `go` is called.

        With the transport inproc, the ranks are threads of a single process.
        """
        pairs = [socket.socketpair() for _ in range(self.size)]
        together = self.unit.transport == "inproc"
        groups = [list(range(self.size))] if together else [[number] for number in range(self.size)]
        runner = os.getpid()
        for numbers in groups:
            process = os.fork()
            if process == 0:
                try:
                    become_fresh(runner)
                    for descriptor in NOT_FOR_RANKS:
                        os.close(descriptor)
                    for number, (outside, inside) in enumerate(pairs):
                        outside.close()
                        if number not in numbers:
                            inside.close()
                    for member in self.members:
                        member.socket.detach()
                    self._live(numbers, [pairs[number][1] for number in numbers])
                except BaseException:
                    traceback.print_exc()  # a fault of the runner's own
                finally:
                    os._exit(70)
            for number in numbers:
                self.members.append(Member(number, process, pairs[number][0]))
        for member, (_, inside) in zip(self.members, pairs, strict=True):
            inside.close()
            member.socket.setblocking(False)
            self._poll.register(member.socket, select.POLLIN)
            self._by_descriptor[member.socket.fileno()] = member

    def go(self) -> None:
        """Wait until all ranks have started, then let them begin their program."""
        self.wait_for("forked", range(self.size))
        for member in self.members:
            self.say(member.number, "go")
        self.moments["begun"] = time.monotonic()

    def say(self, rank: int, word: str) -> None:
        with contextlib.suppress(OSError):
            self.members[rank].socket.sendall(word.encode() + b"\n")

    # --- time and reports

    def injected(self, at: float | None = None, name: str = "injected") -> None:
        """Record the time of the fault: now or, if given, the time `at` on the monotonic clock.

        The time limits for expected errors count from this time. If `name` is not "injected", it names another event,
        from which a time limit may count instead. Then the time of that event is recorded.
        """
        self.moments[name] = time.monotonic() if at is None else at

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`. Reports of the ranks are read meanwhile."""
        self._until(lambda: False, seconds)

    def wait_for(self, event: str, ranks: Iterable[int], seconds: float = START, count: int = 1) -> None:
        """Wait until each of `ranks` has reported `event` at least `count` times, for at most `seconds`.

        Raises: NotReached if a rank ends without these reports, or if the time is over.
        """
        wanted = [self.members[rank] for rank in ranks]

        def over() -> bool:
            return all(len(m.all(event)) >= count or m.status is not None or m.event("closed") for m in wanted)

        self._until(over, seconds)
        for member in wanted:
            if len(member.all(event)) < count:
                said = member.outcome or {"event": "nothing"}
                raise NotReached(
                    f"rank {member.number} has not reported {event!r}: {said.get('kind', said['event'])} "
                    f"{said.get('text', '')}"
                )

    def finished(self, seconds: float) -> bool:
        """Wait until the processes of all ranks have ended, for at most `seconds`; return whether they have.

        Processes that `stop` has stopped (SIGSTOP) count as ended.
        """
        return self._until(lambda: all(m.status is not None or m.stopped for m in self.members), seconds)

    # --- what is done to ranks

    def kill(self, rank: int) -> None:
        self.killed.add(rank)
        self.signal(rank, signal.SIGKILL)

    def stop(self, rank: int) -> None:
        self.members[rank].stopped = True
        self.signal(rank, signal.SIGSTOP)

    def wake(self, rank: int) -> None:
        self.members[rank].stopped = False
        self.signal(rank, signal.SIGCONT)

    def signal(self, rank: int, number: signal.Signals) -> None:
        if self.members[rank].status is None:
            os.kill(self.members[rank].process, number)

    @property
    def survivors(self) -> list[int]:
        return [number for number in range(self.size) if number not in self.victims]

    def end(self) -> None:
        """Kill the ranks that still run, and undo what the injected fault has changed, such as a cut network link."""
        self._ending = True
        for process in {member.process for member in self.members if member.status is None}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._until(lambda: all(member.status is not None for member in self.members), START)
        for member in self.members:
            member.socket.close()
        self.undo.close()

    # --- inside

    def _live(self, numbers: list[int], sockets: list[socket.socket]) -> None:
        """In the forked process."""
        if self.hosts:
            with open(f"/run/netns/{self.hosts[numbers[0]].namespace}") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
        for name in [name for name in os.environ if name.startswith("COLLECTIVES_")]:
            del os.environ[name]
        os.environ.update({"COLLECTIVES_CALIBRATE": "off", **self.case.environment})
        ranks = [
            Rank(
                number,
                self.size,
                self.unit.transport,
                self._store,
                self._name,
                self._secret,
                self.victims,
                self.unit.seed,
                self.values,
                connection,
            )
            for number, connection in zip(numbers, sockets, strict=True)
        ]
        hear_warnings(ranks)
        threads = [threading.Thread(target=act, args=(rank, self.case.program)) for rank in ranks[1:]]
        for thread in threads:
            thread.start()
        act(ranks[0], self.case.program)
        for thread in threads:
            thread.join()
        os._exit(0)

    def _until(self, over: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while True:
            self._reap()
            if over():
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            if STOP and not self._ending:
                raise SystemExit(1)
            for descriptor, _ in self._poll.poll(min(left, 0.05) * 1e3):
                self._read(self._by_descriptor[descriptor])

    def _read(self, member: Member) -> bool:
        """Whether there was something, and there may be more."""
        try:
            data = member.socket.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self._poll.unregister(member.socket)
            del self._by_descriptor[member.socket.fileno()]
            return False
        *lines, member.unread = (member.unread + data).split(b"\n")
        member.events += [json.loads(line) for line in lines]
        return True

    def _reap(self) -> None:
        for process in {member.process for member in self.members if member.status is None}:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                for member in self.members:
                    if member.process == process:
                        member.status, member.ended = os.waitstatus_to_exitcode(status), time.monotonic()
                        while member.socket.fileno() in self._by_descriptor and self._read(member):
                            pass
