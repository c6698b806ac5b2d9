"""Works and futures of torch.distributed over ours.

Invariant: a result is in the caller's tensors before anybody is told that the work is done, and an error is the one
that the communicator raised, wherever it is asked for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, Protocol

import torch
import torch.distributed as dist

from native.errors import OpTimeout


class Started(Protocol):
    """What `collectives.Work` is, for those who only wait."""

    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def result(self) -> Any: ...


class Done(dist.Work):
    """A work that was complete when the call returned."""

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
    """A work that goes on in the background; it keeps its tensors alive.

    Waits end with the operation's own deadline where they give none. Errors are those of `collectives`.
    """

    def __init__(
        self,
        started: Started,
        tensors: Sequence[Any],
        finish: Callable[[Any], None] | None,
        completer: Completer,
        source: int = -1,
    ) -> None:
        """`finish` is called once with the result, in a thread that asks for it, before the work counts as done."""
        super().__init__()
        self._started: Final = started
        self._tensors: Final = list(tensors)
        self._finish = finish
        self._completer: Final = completer
        self._source: Final = source
        self._lock: Final = threading.Lock()
        self._future: Any = None
        self._value: Any = None
        self._fulfilled = False

    def wait(self, timeout: Any = None) -> bool:
        seconds = None if timeout is None else timeout.total_seconds()
        self.settle(seconds or None)  # torch says 0 where it means no timeout
        return True

    def settle(self, seconds: float | None = None) -> None:
        """Return when the result is in the tensors. Raises what went wrong; OpTimeout leaves it running."""
        self._started.wait(seconds)
        with self._lock:
            if self._finish is not None:
                finish, self._finish = self._finish, None
                with torch.no_grad():
                    finish(self._started.result())

    def is_completed(self) -> bool:
        if not self._started.done():
            return False
        self.exception()  # so that the result is in the tensors
        return True

    def is_success(self) -> bool:
        return self._started.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What went wrong, None while nothing has."""
        if not self._started.done():
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
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Has the list of tensors when the work is done, or its error."""
        return self.promise(self._tensors)

    def promise(self, value: Any) -> Any:
        """The work's future, of which there is one; it has `value` when the work is done, or its error."""
        with self._lock:
            if self._future is None:
                self._future, self._value = torch.futures.Future(), value
                self._completer.put(self)
            return self._future

    def fulfil(self) -> None:
        """Wait until it is done, and complete the future, if there is one."""
        error = None
        try:
            self.settle()
        except Exception as found:
            error = found
        with self._lock:
            future = None if self._fulfilled else self._future
            self._fulfilled = self._future is not None
        if future is None:
            return
        if error is None:
            future.set_result(self._value)
        else:
            future._set_unwrap_func(_Failure.throw)
            future.set_result(_Failure(error))

    def end_with_backward(self) -> None:
        """Where a backward pass is under way, see to it that it does not end before, and raises what went wrong.

        DistributedDataParallel waits for futures in C++, where errors lose their type. What is queued now runs first.
        """
        if torch._C._current_graph_task_id() >= 0:
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.settle()
        self.fulfil()


class Completer:
    """Completes futures as their works end: one thread, there from the first future on.

    Works of one communicator end in the order in which they were started, so it waits for one after the other.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._queue: Final[queue.SimpleQueue[Pending | None]] = queue.SimpleQueue()
        self._lock: Final = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, work: Pending) -> None:
        """Complete the future of `work` as soon as it is done."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """End the thread, once all works that it was given are done: they have to be, or to end by themselves."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.fulfil()
            del work  # or its tensors would live until the next one comes


class _Failure:
    """The value of a future that failed: whoever looks at it gets the error.

    Python's futures keep errors from C++, where DistributedDataParallel takes the value for tensors: it pickles it to
    find them, or prints it because there are none. Either raises the error, type and all.
    """

    def __init__(self, error: Exception) -> None:
        self._error: Final = error

    def throw(self, *_: Any) -> NoReturn:
        raise self._error

    __reduce_ex__ = __repr__ = __str__ = throw


class Early:
    """An operation that starts as soon as its communicator is there."""

    def __init__(self) -> None:
        self._there: Final = threading.Event()
        self._started: Started | None = None
        self._error: BaseException | None = None

    def begin(self, start: Callable[[], Started]) -> None:
        try:
            self._started = start()
        except BaseException as error:
            self._error = error
        self._there.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._there.set()

    def done(self) -> bool:
        return self._there.is_set() and (self._started is None or self._started.done())

    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        if not self._there.wait(timeout):
            raise OpTimeout(f"the ranks did not meet for it within {timeout:.1f} s")
        if self._started is None:
            assert self._error is not None
            raise self._error
        self._started.wait(None if end is None else max(0.0, end - time.monotonic()))

    def result(self) -> Any:
        self.wait()
        assert self._started is not None
        return self._started.result()
