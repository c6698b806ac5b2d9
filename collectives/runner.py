"""Runs the calls of one communicator, one at a time, and keeps the way of a repeated call short.

Invariant: a call that passed all checks once is repeated without making them again only for what they depend
on and cannot have changed: shape, dtype, op, algorithm and memory layout are looked at every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeAlias

import numpy as np

from collectives.arrays import Array, Dtype
from collectives.calls import Call, Calls
from collectives.fusion import Fusion
from collectives.gate import Gate
from collectives.prepare import Preparer
from collectives.repeated import Form
from collectives.schedule.layout import Layout
from collectives.schedule.table import Situation
from collectives.work import Tickets, Waiter, Work
from native import _engine
from native._engine import Group, Plan, Repeater

P = ParamSpec("P")
Build: TypeAlias = "Callable[..., Call]"  # (x, out, timeout, *args)


class Runner:
    """Owns nothing: the group is closed by who made it."""

    def __init__(
        self,
        group: Group,
        rank: int,
        situation: Situation,
        layout: Layout,
        name: str,
        timeout: float,
        memory: Callable[[int, Dtype], Array],
    ) -> None:
        """`memory` gives an array of so many elements, where it can be one that peers read directly."""
        self.timeout: Final = timeout
        self.gate: Final = Gate(name)
        self.calls: Final = Calls(group, Preparer(rank, situation, layout), timeout)
        self._group: Final = group
        self._waiter: Final = Waiter()
        self._fusion: Final = Fusion(self.calls, memory)
        self._repeaters: Final[dict[str, Repeater]] = {}

    def run(self, build: Callable[P, Call], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Check and prepare the call by `build`, run it on this thread, give its result."""
        latch = self.gate.latch
        if not latch.acquire():
            self.gate.refuse()
        try:
            call = build(*args, **kwargs)
            self._group.run(call.operation, call.inp, call.out, call.seconds)
            return call.deliver()
        finally:
            latch.release()

    def start(self, build: Callable[P, Call], *args: P.args, **kwargs: P.kwargs) -> Work[Any]:
        """The same in the background."""
        latch = self.gate.latch
        if not latch.acquire():
            self.gate.refuse()
        try:
            call = build(*args, **kwargs)
            ticket = self._group.start(call.operation, call.inp, call.out, call.seconds)
            return Work(ticket, call.deliver, self._waiter)
        finally:
            latch.release()

    def run_many(self, *args: Any) -> list[Any]:
        """Check and prepare by `Fusion.prepare(*args)`, run one after the other on this thread, give the results."""
        latch = self.gate.latch
        if not latch.acquire():
            self.gate.refuse()
        try:
            many = self._fusion.prepare(*args)
            for step in many.steps:
                step.pack()
                self._group.run(step.call.operation, step.call.inp, step.call.out, step.call.seconds)
                step.unpack()
            return many.deliver()
        finally:
            latch.release()

    def start_many(self, *args: Any) -> Work[list[Any]]:
        """The same in the background."""
        latch = self.gate.latch
        if not latch.acquire():
            self.gate.refuse()
        try:
            many = self._fusion.prepare(*args)
            tickets = []
            for step in many.steps:
                step.pack()
                call = step.call
                tickets.append(self._group.start(call.operation, call.inp, call.out, call.seconds))

            def deliver() -> list[Any]:
                for step in many.steps:
                    step.unpack()
                return many.deliver()

            return Work(Tickets(tickets), deliver, self._waiter)
        finally:
            latch.release()

    def repeater(self, name: str, way: Callable[..., Any], form: Form, arrays: tuple[Array, Array] | None) -> Repeater:
        """Runs calls that `remembered` has seen, with no checks but those of what may have changed; others by `way`."""
        made = _engine.repeater(self._group, self.gate.latch, self.timeout, way, form.positional, form.keywords, arrays)
        self._repeaters[name] = made
        return made

    def remembered(self, build: Build, x: Any, out: Any, timeout: float | None, *args: Any) -> Any:
        """As `run(build, x, out, timeout, *args)`; from then on the repeater of that name knows calls like this one."""
        return self.run(self._remember, build, x, out, timeout, args)

    def plan(self, x: Any, out: Any, timeout: float | None, op: str, algorithm: str) -> Plan:
        """An allreduce of these arrays, ready to be called. Sends nothing. TypeError, ValueError for other arrays."""
        for name, array in (("x", x), ("out", out)):
            if type(array) is not np.ndarray and not (array is None and name == "out"):
                raise TypeError(f"a plan needs NumPy arrays, but {name} is {type(array).__name__}")
        if not x.flags.c_contiguous:
            raise ValueError("a plan needs arrays without gaps, in C order, but x is not contiguous")
        latch = self.gate.latch
        if not latch.acquire():
            self.gate.refuse()
        try:
            result = np.empty_like(x) if out is None else out
            call = self.calls.allreduce(x, result, timeout, op, algorithm)
            if not call.repeatable:  # a lone rank's logical op: nobody to combine with, but 0 and 1 to be made
                raise ValueError(f"a group of one rank has no plan for {op!r}; call allreduce")
            copied = result is x and call.inp is not x
            seconds = self.timeout if timeout is None else timeout
            return _engine.plan(self._group, latch, seconds, call.operation, x, result, copied, self.gate.refuse)
        finally:
            latch.release()

    def _remember(self, build: Build, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...]) -> Call:
        call = build(x, out, timeout, *args)
        target = call.target
        # Another array like x might be written itself where this one was staged.
        staged = target is not None and call.out is not x and (target.origin is x or target.result is x)
        if type(x) is np.ndarray and call.repeatable and not staged:
            copied = call.out is x and call.inp is not x
            wants = _engine.NO_INPUT if call.inp is None else _engine.COPIED if copied else _engine.AS_IT_IS
            result = None if target is None else x if call.out is x else target.host.shape
            _engine.remember(self._repeaters[build.__name__], x, args, out is x, call.operation, wants, result)
        return call
