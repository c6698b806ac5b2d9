"""A call that is ready to run: an operation of the C++ engine, its arrays, and what is done with the result.

Invariant: all arguments have been checked before a ready call exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from collectives.arrays.array import Array, Target
from collectives.calls.status import Status
from collectives.calls.work import Tickets, Waiter, Work
from collectives.native import _engine

Receipt = tuple[int, int]
_NONE: Receipt = (-1, 0)


class Ready(Protocol):
    """A collective or message whose arguments have been checked; `run` or `start` runs it, any number of times.

    `seconds`: the time limit of each run.
    """

    @property
    def result(self) -> Any:
        """The array that `run` returns, if this array exists already before the run; else None."""

    def run(self, group: _engine.Group, seconds: float) -> Any: ...
    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]: ...
    @property
    def seconds(self) -> float: ...


class Transfer(Protocol):
    """Copies between arrays on a device and the memory of an operation, for one run."""

    @property
    def native(self) -> _engine.CudaTransfer: ...
    def finish(self) -> None:
        """The operation is over, and what it wrote is complete."""


class Call(NamedTuple):
    """One operation of the C++ engine, with its arrays: it reads `inp` and writes `out`.

    - `target`: says how the caller's array is made from `out`; None if this rank gets no result
    - `seconds`: the time limit
    - `finish`: a function that is called with the result at the end
    - `status`: where the sender and length of a received message are stored
    - `copies`: whether the operation reads a copy of `inp`. A copy is necessary if `inp` and `out` are the same array,
      and `inp` would be overwritten too soon
    - `transfer`: if `inp` and `out` stand for arrays on a device, the copies between these and them
    """

    operation: _engine.Operation
    inp: Array | None
    out: Array | None
    target: Target | None
    seconds: float
    finish: Callable[[Array], None] | None = None
    status: Status | None = None
    copies: bool = False
    transfer: Transfer | None = None

    @property
    def repeatable(self) -> bool:
        """Whether C++ code alone can run this operation again: Python code has nothing to do before or after it."""
        alone = self.finish is None and self.status is None and self.transfer is None
        return alone and (self.target is None or self.target.changed is None)

    @property
    def result(self) -> Any:
        return None if self.target is None else self.target.result

    @property
    def taken(self) -> Array | None:
        """The array that the operation reads."""
        return self.inp.copy() if self.copies and self.inp is not None else self.inp

    @property
    def native(self) -> _engine.CudaTransfer | None:
        """The transfer, as the C++ engine knows it."""
        return None if self.transfer is None else self.transfer.native

    def with_transfer(self, transfer: Transfer) -> Call:
        return self._replace(transfer=transfer)

    def begin(self) -> None:
        """Call `Target.begin`, if there is a target."""
        if self.target is not None:
            self.target.begin()

    def deliver(self, receipt: Receipt = _NONE) -> Any:
        if self.status is not None:
            self.status.source, self.status.count = receipt
        if self.target is not None and self.finish is not None:
            self.finish(self.target.host)
        if self.transfer is not None:
            self.transfer.finish()
        return None if self.target is None else self.target.deliver()

    def run(self, group: _engine.Group, seconds: float) -> Any:
        self.begin()
        return self.deliver(group.run(self.operation, self.taken, self.out, seconds, self.native))

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        self.begin()
        ticket = group.start(self.operation, self.taken, self.out, seconds, self.native)
        return Work(ticket, lambda: self.deliver(ticket.receipt), waiter, owner)


class Exchange(NamedTuple):
    """Sends one message and receives another at the same time, as `sendrecv` does.

    `overlap`: whether the array that is sent and the array that is received share memory.
    """

    sent: Call
    received: Call
    overlap: bool

    def with_transfer(self, transfer: Transfer) -> Exchange:
        """Both messages share it; it ends with the received one."""
        return self._replace(sent=self.sent.with_transfer(transfer), received=self.received.with_transfer(transfer))

    @property
    def seconds(self) -> float:
        return self.received.seconds

    @property
    def result(self) -> Any:
        return self.received.result

    def run(self, group: _engine.Group, seconds: float) -> Any:
        sent, received, _ = self
        received.begin()
        receipt = group.exchange(
            sent.operation, self.leaving(), received.operation, received.out, seconds, received.native
        )
        return received.deliver(receipt)

    def start(self, group: _engine.Group, seconds: float, waiter: Waiter, owner: object) -> Work[Any]:
        sent, received, _ = self
        received.begin()
        leaving = group.start(sent.operation, self.leaving(), None, seconds, sent.native)
        coming = group.start(received.operation, None, received.out, seconds, received.native)
        return Work(Tickets((leaving, coming)), lambda: received.deliver(coming.receipt), waiter, owner)

    def leaving(self) -> Array | None:
        """Returns the array to send, or a copy of it if the received message would overwrite it."""
        inp = self.sent.inp
        return inp.copy() if inp is not None and self.overlap else inp
