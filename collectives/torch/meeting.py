"""Communicators of torch's process groups: who meets whom, through torch's store, under which name.

Invariant: what is met here is used by one process group alone; it is nobody's default communicator.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from collectives import default
from collectives.communicator import Communicator
from collectives.init import init
from collectives.torch.store import TorchStore
from collectives.torch.works import Early, Started
from native.errors import Aborted


@dataclass(frozen=True, slots=True)
class Options:
    """For `init_process_group(pg_options=...)` and `new_group(pg_options=...)`; fields as in `collectives.init`.

    Ranks of several machines need a secret (COLLECTIVES_SECRET_FILE does as well), or `insecure`, which makes them
    trust whoever reaches them, as Gloo and NCCL do.
    """

    transport: str | None = None
    secret: bytes | None = None
    insecure: bool = False
    segment: int | None = None
    sockets: int | None = None
    calibrate: str | None = None


class Place(NamedTuple):
    """Where the ranks of one process group meet."""

    store: Any
    timeout: float
    options: Options

    def meet(self, rank: int, size: int, name: str, *, store: TorchStore | None = None) -> Communicator:
        """Blocks until all of them are there. Raises what `collectives.init` raises."""
        options = self.options
        comm = init(
            store or TorchStore(self.store),
            rank=rank,
            size=size,
            name=name,
            transport=options.transport,
            timeout=self.timeout,
            join_timeout=self.timeout,
            secret=options.secret,
            insecure=options.insecure,
            segment=options.segment,
            sockets=options.sockets,
            # Messages between two ranks leave nothing to choose, so there is nothing to measure.
            calibrate="off" if name.startswith(_MESSAGES) else options.calibrate,
        )
        default.forget(comm)
        return comm

    def channel(self, source: int, dest: int, tag: int, *, sends: bool) -> Channel:
        """For messages of that tag from one rank to the other; comes into being when both have asked for it."""
        store = TorchStore(self.store)
        name = f"{_MESSAGES} {source} {dest} {tag}"
        return Channel(lambda: self.meet(0 if sends else 1, 2, name, store=store), store.close, name)


_MESSAGES: Final = "messages"


class Channel:
    """Messages from one rank to another, apart from all other operations of the group, in the order of their calls.

    What is sent or received before the two have met waits for that, while the caller goes on.
    """

    def __init__(self, meet: Callable[[], Communicator], give_up: Callable[[], None], name: str) -> None:
        """`give_up` ends a `meet` that still waits."""
        self._lock: Final = threading.Lock()
        self._early: Final[deque[tuple[Early, Callable[[Communicator], Started]]]] = deque()
        self._comm: Communicator | None = None
        self._error: BaseException | None = None
        self._give_up: Final = give_up
        self._thread: Final = threading.Thread(target=self._open, args=(meet,), name=f"collectives {name}", daemon=True)
        self._thread.start()

    def start(self, operation: Callable[[Communicator], Started]) -> Started:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._comm is not None:
                return operation(self._comm)
            early = Early()
            self._early.append((early, operation))
            return early

    def close(self) -> None:
        with self._lock:
            self._error = self._error or Aborted("the process group was destroyed")
            comm, self._comm = self._comm, None
        self._give_up()
        if comm is not None:
            comm.close()
        self._thread.join()

    def _open(self, meet: Callable[[], Communicator]) -> None:
        try:
            comm = meet()
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
                for early, _ in self._early:
                    early.fail(self._error)
            return
        with self._lock:
            if self._error is None:
                self._comm = comm
                for early, operation in self._early:
                    early.begin(lambda operation=operation: operation(comm))  # type: ignore[misc]
                return
            for early, _ in self._early:
                early.fail(self._error)
        comm.close()
