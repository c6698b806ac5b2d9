"""Runs a process group's operations on CUDA tensors in streams, as torch.distributed defines it.

Invariant: an operation begins when what is in the caller's current stream has ended. A synchronous operation runs in
this stream. An asynchronous one, and a message, runs in a stream of the group, and `wait` makes the then current stream
wait for it. Nothing waits on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

from collectives.torch.operations import Operation

Start: TypeAlias = "Callable[[Operation], Any]"  # returns the communicator's `Work`
Issue: TypeAlias = "Callable[[Sequence[Operation]], list[Any]]"  # the same for several operations


class Streams:
    """The CUDA streams of one process group: one stream for each device, made at first use."""

    def __init__(self) -> None:
        self._streams: Final[dict[Any, Any]] = {}

    def start(self, operations: Sequence[Operation], issue: Issue, device: Any, inputs: Sequence[Any]) -> OnStream:
        """Runs the operations in the group's stream for `device`; returns one torch `Work` for all of them.

        `issue` puts them into torch's current stream. `inputs`: the tensors that the caller has passed.
        """
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            works = issue(operations)
            event = side.record_event()
        tensors = [tensor for operation in operations for tensor in operation.tensors]
        for tensor in (*inputs, *used(operations)):
            tensor.record_stream(side)
        return OnStream(works, tensors, side, event, device)


def used(operations: Sequence[Operation]) -> list[Any]:
    """Returns the tensors whose memory the operations use: also copies, which are in no argument of torch's call."""
    found: list[Any] = []
    for operation in operations:
        for value in (*operation.tensors, *operation.args, operation.out):
            several = value if isinstance(value, list | tuple) else (value,)
            found += [one for one in several if isinstance(one, torch.Tensor)]
    return found


def run(operations: Sequence[Operation], start: Start) -> list[Any]:
    """Runs the operations in torch's current stream; returns a list of the communicator's `Work` objects.

    `start` starts one operation, and returns its `Work`. The results are copied in the same stream.
    """
    works = []
    for operation in operations:
        work = start(operation)
        result = work.in_stream()
        if operation.after is not None:
            with torch.no_grad():
                operation.after(result)
        works.append(work)
    return works


class OnStream(dist.Work):
    """The torch `Work` of operations in a stream of the group."""

    def __init__(self, works: Sequence[Any], tensors: list[Any], side: Any, event: Any, device: Any) -> None:
        """`works`: of the communicator. `event`: recorded in the stream `side` after all of them."""
        super().__init__()
        self._works: Final = works
        self._tensors: Final = tensors
        self._side: Final = side
        self._event: Final = event
        self._device: Final = device
        self._future: Any = None

    def wait(self, timeout: Any = None) -> bool:
        """Makes the current CUDA stream wait for the result.

        With a timeout, the host waits too: for each operation at most for this time.
        """
        if timeout is not None and timeout.total_seconds() > 0:
            for one in self._works:
                one.wait(timeout.total_seconds())
        else:
            self._raise()
        torch.cuda.current_stream(self._device).wait_event(self._event)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(one.done() for one in self._works)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        try:
            self._raise()
        except Exception as error:
            return error
        return None

    def result(self) -> list[Any]:
        self.wait()
        return self._tensors

    def get_future(self) -> Any:
        """Returns a torch future of the list of tensors. A stream that waits for this future waits for the result."""
        if self._future is None:
            self._future = torch.futures.Future(devices=[self._device])
            with torch.cuda.stream(self._side):
                self._future.set_result(self._tensors)
        return self._future

    def joined(self, others: Sequence[OnStream]) -> OnStream:
        """Returns one torch `Work` for the operations of `others` and of this object.

        All these operations are in the same stream. The operations of this object were started last.
        """
        works = [work for one in (*others, self) for work in one._works]
        tensors = [tensor for one in (*others, self) for tensor in one._tensors]
        return OnStream(works, tensors, self._side, self._event, self._device)

    def _raise(self) -> None:
        """Raise the error of an operation that has failed. Does not wait."""
        for one in self._works:
            if one.done():
                one.wait(None)
