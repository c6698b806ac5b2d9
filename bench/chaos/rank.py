"""A rank of a chaos run, seen from inside: it forms the group, works, and reports what happens to it.

Invariant: whatever the program raises is reported with the moment at which it was raised, before anything is closed;
then the communicator is closed, and resources are counted again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import collectives

_SETTLE: Final = 2.0  # seconds that threads and descriptors may take to go after the communicator was closed
_TEXT: Final = 600  # characters of a message in a report
_TASK: Final = "CHAOS_RANK"
_ADOPT: Final = "from collectives.bench.chaos.rank import adopted; rank = adopted()\n"


@dataclass(slots=True)
class Rank:
    """One rank of a small job into which a fault is injected, with the functions that its program needs.

    `victims` are the ranks that the fault hits; all ranks know them. `rng` is a random generator that gives all ranks
    the same numbers. `values` are the parameters of the fault, such as a timeout.
    """

    number: int
    size: int
    transport: str
    store: str
    name: str
    secret: bytes
    victims: tuple[int, ...]
    seed: int
    values: Mapping[str, Any]
    socket: socket.socket
    comm: collectives.Communicator | None = None
    rng: random.Random = field(default_factory=random.Random)
    _received: bytes = b""

    @property
    def is_victim(self) -> bool:
        return self.number in self.victims

    def init(self, **changes: Any) -> collectives.Communicator:
        """Call `collectives.init` for this rank, and return the communicator.

        `changes` are arguments of `init` that differ from the usual ones. Raises: the errors of `init`.
        """
        self.tell("joining")
        arguments: dict[str, Any] = {
            "store": self.store,
            "rank": self.number,
            "size": self.size,
            "name": self.name,
            "transport": self.transport,
            "secret": self.secret,
            "calibrate": "off",
            "timeout": self.values.get("timeout"),
            "join_timeout": self.values.get("join_timeout", 60.0),
        }
        self.comm = collectives.init(**{**arguments, **changes})
        self.tell("joined")
        return self.comm

    def tell(self, event: str, **fields: Any) -> None:
        """Send a report to the process that started the ranks: `event` has just happened.

        `fields` are added to the report.
        """
        line = json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n"
        with contextlib.suppress(OSError):
            self.socket.sendall(line.encode())

    def asked(self, wait: float | None = 0.0) -> str:
        """Return the next message from the process that started the ranks, or "" if none arrives in `wait` seconds.

        If `wait` is None, there is no time limit. If the process that started the ranks has ended, this process exits.
        """
        self.socket.settimeout(wait)
        try:
            while b"\n" not in self._received:
                data = self.socket.recv(256)
                if not data:
                    os._exit(0)  # the runner has gone
                self._received += data
        except (BlockingIOError, TimeoutError):
            return ""
        finally:
            self.socket.settimeout(None)
        word, _, self._received = self._received.partition(b"\n")
        return word.decode()

    def become(self, script: str) -> None:
        """Replace this process by a new Python interpreter that runs `script`.

        In the script, the variable `rank` is a `Rank` object for the same rank of the job.
        """
        os.set_inheritable(self.socket.fileno(), True)
        task = {
            **{name: getattr(self, name) for name in ("number", "size", "transport", "store", "name", "victims")},
            "seed": self.seed,
            "values": dict(self.values),
            "secret": self.secret.hex(),
            "descriptor": self.socket.fileno(),
        }
        os.environ[_TASK] = json.dumps(task)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 2)  # tracebacks that are meant to be; the exit code tells of others
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        os.execv(sys.executable, [sys.executable, "-c", _ADOPT + script])


def adopted() -> Rank:
    """Return the `Rank` of this process, after `Rank.become` has replaced the original process of the rank."""
    task = json.loads(os.environ.pop(_TASK))
    connection = socket.socket(fileno=task.pop("descriptor"))
    os.set_inheritable(connection.fileno(), False)
    return Rank(
        **{**task, "secret": bytes.fromhex(task["secret"]), "victims": tuple(task["victims"])}, socket=connection
    )


def act(rank: Rank, program: Callable[[Rank], None]) -> None:
    """Run `program` with `rank`, and report the result or the error to the process that started the ranks.

    Returns when the rank's communicator is closed. Raises nothing.
    """
    rank.rng.seed(rank.seed)
    before = _counts()
    rank.tell("forked")
    rank.asked(None)  # until all are here
    try:
        program(rank)
        rank.tell("result")
    except BaseException as error:
        at = time.monotonic()
        named = getattr(error, "ranks", getattr(error, "late", None))
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind, text = type(error).__name__, str(error)[:_TEXT]
        rank.tell("error", raised=at, kind=kind, text=text, ranks=named, where=f"{where.filename}:{where.lineno}")
        error.__traceback__ = error.__context__ = error.__cause__ = None
    start = time.monotonic()
    try:
        if rank.comm is not None:
            rank.comm.close()
    except BaseException as error:
        rank.tell("unclosed", text=f"close() raised {type(error).__name__}: {error}"[:_TEXT])
    rank.comm = None
    closed = time.monotonic()
    if threading.current_thread() is threading.main_thread():  # counts are of the process
        rank.tell("closed", seconds=closed - start, left=_left(before))
    else:
        rank.tell("closed", seconds=closed - start, left={})


def become_fresh(runner: int) -> None:
    """Prepare a forked process: reset its signal handlers, and let it die when the process `runner` ends.

    `runner` is a pid.
    """
    die_with_parent()
    if os.getppid() != runner:
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)


def hear_warnings(ranks: list[Rank]) -> None:
    """Report every warning that the library logs or emits in this process, once for each of `ranks`."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            for rank in ranks:
                rank.tell("warning", text=record.getMessage()[:_TEXT], name=record.name)

    logging.getLogger("collectives").addHandler(Handler(logging.WARNING))

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        for rank in ranks:
            rank.tell("warning", text=str(message)[:_TEXT], name="warnings")

    warnings.simplefilter("always")
    warnings.showwarning = show


def die_with_parent() -> None:
    """Tell the kernel to kill this process as soon as its parent process ends."""
    import ctypes

    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG


def _counts() -> dict[str, int]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "children": sum(_children(path) for path in Path("/proc/self/task").glob("*/children")),
        "segments": sum("/memfd:" in line or "/dev/shm/" in line for line in maps),
    }


def _children(path: Path) -> int:
    try:
        return len(path.read_text().split())
    except OSError:  # the thread has just ended; its children are another thread's now
        return 0


def _left(before: Mapping[str, int]) -> dict[str, int]:
    """By how much each count has grown, once what is on its way out had time to go."""
    end = time.monotonic() + _SETTLE
    while True:
        gc.collect()
        now = _counts()
        grown = {name: now[name] - before[name] for name in now if now[name] > before[name]}
        if not grown or time.monotonic() > end:
            return grown
        time.sleep(0.01)  # the kernel tells nobody that a thread has gone
