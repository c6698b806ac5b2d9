"""The `Work` objects of torch.distributed, each made from a `collectives.Work`, an operation in progress.

Invariant: a result is in the caller's tensors before the work counts as done, and a work's error is the error that the
communicator raised. Once a caller has seen that a work has ended, the future of this work is complete.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from collectives.native.errors import OpTimeout
from collectives.torch.futures import Completer, Failure
from collectives.torch.profiling import Entry


class Started(Protocol):
    """The methods of `collectives.Work` with which torch's `Work` objects wait for an operation and read its result."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def result(self) -> Any: ...


class Done(dist.Work):
    """A torch `Work` for an operation that was complete already when the call returned."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def get_future(self) -> Any:
        future = torch.futures.Future()
        future.set_result([])
        return future


class Pending(dist.Work):
    """A torch `Work` for an operation that runs in the background; it keeps the operation's tensors alive.

    Without a timeout, `wait` waits until the operation's own deadline. Errors are those of this library, such as
    PeerLost.
    """

    def __init__(
        self,
        started: Started,
        tensors: Sequence[Any],
        finish: Callable[[Any], None] | None,
        completer: Completer,
        *,
        source: Callable[[], int] = lambda: -1,
        record: Entry | None = None,
    ) -> None:
        """`finish` is called once with the result of `started`, before this work counts as done.

        The call runs in a thread that waits for this work. For a receive, `source` returns the sender's rank, once
        known. `record` is an entry of torch's profiler. The entry ends when the work ends, in another thread than the
        thread that began the entry.
        """
        super().__init__()
        self._wanted = False  # whether the end was requested
        self._started: Final = started
        self._tensors: Final = list(tensors)
        self._finish = finish
        self._error: Exception | None = None  # the error of `finish`
        self._completer: Final = completer
        self._source: Final = source
        self._lock: Final = threading.Lock()
        self._future: Any = None
        self._value: Any = None
        self._fulfilled = False
        self._record = record
        self._recorded: Final = None if record is None else threading.Event()
        if record is not None:
            completer.put(self)

    # --- what torch and its users call

    def wait(self, timeout: Any = None) -> bool:
        seconds = None if timeout is None else timeout.total_seconds()
        self.settle(seconds or None)  # 0 means no timeout in torch
        return True

    def is_completed(self) -> bool:
        if not self._ended():
            return False
        self.exception()  # copies the result to the tensors
        return True

    def is_success(self) -> bool:
        return self._ended() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Returns the error with which the operation failed; None if it has not failed."""
        if not self._ended():
            return None
        try:
            self.settle()
        except Exception as error:
            return error
        return None

    def synchronize(self) -> None:
        self.settle()

    def result(self) -> list[Any]:
        self.settle()
        return self._tensors

    def source_rank(self) -> int:
        return self._source()

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Returns a future that completes when the operation ends: with the list of its tensors, or with its error."""
        return self.promise(self._tensors)

    # --- for the process group

    @property
    def tensors(self) -> list[Any]:
        return self._tensors

    def settle(self, seconds: float | None = None) -> None:
        """Waits until the operation is done and its result is in the tensors. Raises the operation's error.

        `seconds`: how long to wait; None waits until the operation's deadline. When this time has passed, raises
        OpTimeout, and the operation may continue.
        """
        self._wanted = True
        try:
            self._deliver(seconds)
        except OpTimeout:
            if self._started.done():
                self._complete()
            raise
        except Exception:
            self._complete()
            raise
        if self._recorded is not None:
            self._recorded.wait()
        self._complete()

    def promise(self, value: Any) -> Any:
        """Returns a future that completes when the operation ends: with `value`, or with the operation's error.

        Later calls return the same future, whatever their `value`.
        """
        self._wanted = True
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = torch.futures.Future()
            self._value = value
        if self._ended():
            self._complete()
        else:
            self._completer.put(self)
        return future

    def end_with_backward(self) -> None:
        """If a backward pass is in progress, makes the pass wait at its end until this operation is done.

        If the operation failed, the backward pass raises its error. DistributedDataParallel waits for futures in C++,
        where errors lose their Python types. The wait for this operation comes before the wait in C++.
        """
        if torch._C._current_graph_task_id() >= 0:
            torch.autograd.Variable._execution_engine.queue_callback(self.settle)

    # --- for the completer

    def until_done(self) -> None:
        with suppress(Exception):  # raised again when the result is requested
            self._deliver(None)
        with self._lock:
            record, self._record = self._record, None
        if record is not None:
            record.end()
            assert self._recorded is not None
            self._recorded.set()

    def fulfil(self) -> None:
        self._complete()

    # --- when the work ends

    def _ended(self) -> bool:
        return self._started.done() and (self._recorded is None or self._recorded.is_set())

    def _deliver(self, seconds: float | None) -> None:
        self._started.wait(seconds)
        if self._finish is not None:
            with self._lock:
                self._pour()
        if self._error is not None:
            raise self._error

    def _pour(self) -> None:
        if self._finish is None:
            return
        try:
            with torch.no_grad():
                self._finish(self._started.result())
        except Exception as error:
            self._error = error
        self._finish = None

    def _complete(self) -> None:
        """Complete the future, if there is one. The work has ended."""
        with self._lock:
            future = self._future
            mine = future is not None and not self._fulfilled
            self._fulfilled = future is not None
        if future is None:
            return
        if not mine:  # another thread completes it, and runs callbacks
            if not future.done():
                with suppress(Exception):
                    future.wait()
            return
        try:
            self._deliver(None)
        except Exception as error:
            future._set_unwrap_func(Failure.throw)
            future.set_result(Failure(error))
        else:
            future.set_result(self._value)

    def __del__(self) -> None:
        """Keep this Python object alive if nobody has waited for the work.

        torch may keep only the C++ part of a work, as DistributedDataParallel's `join()` does. The C++ part does not
        work without the Python object.
        """
        if not self._wanted and _kept is not None:
            _kept.append(self)


# The last works for which nobody has waited.
_kept: Final[deque[Pending]] = deque(maxlen=256)
