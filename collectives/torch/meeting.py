"""Forms the communicators of torch's process groups; the ranks find each other through torch's store.

Invariant: each communicator made here belongs to one process group alone, and calls without a communicator never use
it as their default.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from collectives.core import default
from collectives.core.communicator import Communicator
from collectives.core.init import init
from collectives.native.errors import Aborted, CollectiveError, OpTimeout, TransportUnavailable
from collectives.torch.store import TorchStore
from collectives.torch.works import Started


@dataclass(frozen=True, slots=True)
class Options:
    """Options for `init_process_group(pg_options=...)` and `new_group(pg_options=...)`.

    `messages`, the same on all ranks, says how messages (send, recv) of CUDA tensors go: "host", through host memory,
    or "nccl". None reads COLLECTIVES_TORCH_MESSAGES; the default is "host". The other fields are arguments of
    `collectives.init`. Ranks on several machines need a secret, from `secret` or COLLECTIVES_SECRET_FILE, or
    `insecure=True`. With `insecure`, ranks accept connections from all machines, as with Gloo and NCCL.
    """

    transport: str | None = None
    secret: bytes | None = None
    insecure: bool = False
    segment: int | None = None
    sockets: int | None = None
    calibrate: str | None = None
    messages: str | None = None


class Place(NamedTuple):
    """The store, timeout and options by which a process group's ranks form communicators, of all ranks or of two.

    `store`: torch's store. `timeout`: in seconds. `options`: arguments of `collectives.init`.
    """

    store: Any
    timeout: float
    options: Options

    def form(self, rank: int, size: int, *, by_nccl: bool) -> Communicator:
        """Forms the communicator of the process group, and NCCL's communicator for its messages if `by_nccl`.

        NCCL's communicator is made here, since all ranks make it together, and a message has only two. Raises
        ConfigMismatch if `by_nccl` is not the same on all ranks. Raises TransportUnavailable on all ranks if NCCL
        cannot be used.
        """
        comm = self.meet(rank, size, "torch", agreed="messages of CUDA tensors by NCCL" if by_nccl else "")
        if not by_nccl or size == 1:
            return comm
        try:
            comm._prepare_messages(torch.cuda.current_device() if torch.cuda.is_available() else None)
        except BaseException as error:
            if isinstance(error, TransportUnavailable):
                with suppress(CollectiveError):  # others, which still learn why, would lose a rank that leaves
                    comm.barrier(timeout=_TELLS)
            comm.close()
            raise
        return comm

    def meet(
        self, rank: int, size: int, name: str, *, store: TorchStore | None = None, agreed: str = ""
    ) -> Communicator:
        """Forms a communicator of `size` ranks, in which this rank is number `rank`.

        Waits until all these ranks have called `meet`. `name`: different for each communicator. `store`: None for the
        process group's store. `agreed`: further settings that have to be the same on these ranks. Raises the errors of
        `collectives.init`.
        """
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
            _agreed=agreed,
            # For messages between two ranks there is no choice of algorithm, so there is nothing to measure.
            calibrate="off" if name.startswith(_MESSAGES) else options.calibrate,
        )
        default.forget(comm)
        return comm

    def channel(self, source: int, dest: int, tag: int, *, sends: bool) -> Channel:
        """Returns a connection for messages with this `tag` from rank `source` to rank `dest`.

        The connection opens when both ranks have called `channel`. `sends`: whether this rank is `source`.
        """
        store = TorchStore(self.store)
        name = f"{_MESSAGES} {source} {dest} {tag}"
        if sends:
            store.set(f"{name} asked", b"")
        return Channel(lambda: self.meet(0 if sends else 1, 2, name, store=store), store.close, name)

    def asked(self, source: int, dest: int, tag: int) -> bool:
        """Whether rank `source` has asked for a connection to rank `dest` for messages with this `tag`."""
        return TorchStore(self.store).get(f"{_MESSAGES} {source} {dest} {tag} asked") is not None


_TELLS: Final = 5.0  # seconds for which a rank that cannot use NCCL waits until the others know why
_MESSAGES: Final = "messages"
_BY: Final = "COLLECTIVES_TORCH_MESSAGES"
_WAYS: Final = ("host", "nccl")


def by_nccl(options: Options, env: Mapping[str, str] = os.environ) -> bool:
    """Whether messages of CUDA tensors go by NCCL. Raises ValueError for an option or variable with a wrong value."""
    name, asked = ("Options.messages", options.messages) if options.messages is not None else (_BY, env.get(_BY))
    if asked and asked not in _WAYS:
        raise ValueError(f"{name} is {asked!r}: give {' or '.join(map(repr, _WAYS))}")
    return asked == "nccl"


class Early:
    """A send or receive that starts later, when its two ranks are connected.

    The operation fails if the ranks are not connected within `seconds`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds: Final = seconds
        self._end: Final = time.monotonic() + seconds
        self._lock: Final = threading.Lock()
        self._there: Final = threading.Event()
        self._started: Started | None = None
        self._error: BaseException | None = None

    def begin(self, start: Callable[[], Started]) -> None:
        with self._lock:
            if self._there.is_set():
                return
            try:
                self._started = start()
            except BaseException as error:
                self._error = error
            self._there.set()

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if not self._there.is_set():
                self._error = error
                self._there.set()

    def begun(self) -> bool:
        """Whether the operation has started, or can never start because it has failed."""
        if not self._there.is_set() and time.monotonic() > self._end:
            self._expire()
        return self._there.is_set()

    def done(self) -> bool:
        return self.begun() and (self._started is None or self._started.done())

    def wait(self, timeout: float | None = None) -> None:
        until = self._end if timeout is None else time.monotonic() + timeout
        if not self._there.wait(max(0.0, min(until, self._end) - time.monotonic())):
            if until < self._end:
                raise OpTimeout(f"the ranks did not meet for it within {timeout:.1f} s")
            self._expire()
        if self._started is None:
            assert self._error is not None
            raise self._error
        self._started.wait(None if timeout is None else max(0.0, until - time.monotonic()))

    def result(self) -> Any:
        self.wait()
        assert self._started is not None
        return self._started.result()

    def _expire(self) -> None:
        self.fail(OpTimeout(f"no other rank asked for this message within {self._seconds:.1f} s"))


class Channel:
    """A connection for messages with one tag from one rank to another, on a communicator of these two ranks.

    Messages keep the order of the calls, and do not wait for other operations of the process group. If a send or
    receive is called before the two ranks are connected, the call returns at once. The operation starts when the two
    ranks are connected.
    """

    def __init__(self, meet: Callable[[], Communicator], give_up: Callable[[], None], name: str) -> None:
        """`meet` forms the communicator; `give_up` ends a `meet` that still waits."""
        self._lock: Final = threading.Lock()
        self._early: Final[deque[tuple[Early, Callable[[Communicator], Started]]]] = deque()
        self._comm: Communicator | None = None
        self._error: BaseException | None = None
        self._give_up: Final = give_up
        self._thread: Final = threading.Thread(target=self._open, args=(meet,), name=f"collectives {name}", daemon=True)
        self._thread.start()

    def start(self, operation: Callable[[Communicator], Started], seconds: float) -> Started:
        """Starts a send or receive between the two ranks, and returns a handle to wait for.

        `operation(comm)` starts the send or receive on the communicator of the two ranks. The send or receive fails if
        the other rank does not connect within `seconds`.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._comm is not None:
                return operation(self._comm)
            early = Early(seconds)
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
