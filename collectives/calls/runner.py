"""Runs the calls of one communicator, one at a time, and keeps the way of a repeated call short.

Invariant: a call that passed all checks once is repeated without making them again only for what they depend
on and cannot have changed: shape, dtype, op, algorithm and memory layout are looked at every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeAlias

import numpy as np

from collectives.arrays.array import Array, Dtype
from collectives.calls.call import Call, Ready
from collectives.calls.fusion import Fusion
from collectives.calls.gate import Gate
from collectives.calls.moves import Calls
from collectives.calls.plan import Plan, StepwisePlan
from collectives.calls.prepare import Preparer
from collectives.calls.reductions import ReductionCalls
from collectives.calls.repeated import Form
from collectives.calls.work import Tickets, Waiter, Work
from collectives.native import _engine
from collectives.native._engine import Group, Repeater
from collectives.schedule.layout import Layout
from collectives.schedule.table import Situation

P = ParamSpec("P")
Seconds: TypeAlias = "float | None"
Build: TypeAlias = "Callable[..., Ready]"  # (x, out, timeout, *args)


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
        self.reductions: Final = ReductionCalls(self.calls)
        self._fusion: Final = Fusion(self.reductions, memory)
        self._repeaters: Final[dict[str, Repeater]] = {}

    def run(self, build: Callable[P, Ready], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Check and prepare the call by `build`, run it on this thread, give its result."""
        with self.gate:
            call = build(*args, **kwargs)
            return call.run(self._group, call.seconds)

    def start(self, owner: object, build: Callable[P, Ready], *args: P.args, **kwargs: P.kwargs) -> Work[Any]:
        """The same in the background; `owner` lives as long as its Work."""
        with self.gate:
            call = build(*args, **kwargs)
            return call.start(self._group, call.seconds, self._waiter, owner)

    def plan(self, owner: object, build: Build, x: Any, out: Any, timeout: float | None, *args: Any) -> Plan:
        """The call that `build` prepares, to be run again and again; `owner` lives as long as the plan."""
        with self.gate:
            call = build(x, out, timeout, *args)
        seconds = self.timeout if timeout is None else timeout

        def again() -> Any:
            with self.gate:
                return call.run(self._group, seconds)

        def start() -> Work[Any]:
            with self.gate:
                return call.start(self._group, seconds, self._waiter, owner)

        if not isinstance(call, Call) or not call.repeatable:
            return StepwisePlan(call.result, again, start, owner)
        if call.out is not None and call.target is not None and call.out is not call.result:
            raise ValueError("a plan writes the array that it was given, but that is read-only")
        return _engine.plan(
            self._group, self.gate.latch, seconds, call.operation, call.inp, call.out, call.result, call.copies,
            self.gate.refuse, start, owner,
        )  # fmt: skip

    def run_many(self, *args: Any) -> list[Any]:
        """Check and prepare by `Fusion.prepare(*args)`, run one after the other on this thread, give the results."""
        with self.gate:
            many = self._fusion.prepare(*args)
            many.begin()
            for step in many.steps:
                step.pack()
                step.call.run(self._group, step.call.seconds)
                step.unpack()
            return many.deliver()

    def start_many(self, owner: object, *args: Any) -> Work[list[Any]]:
        """The same in the background."""
        with self.gate:
            many = self._fusion.prepare(*args)
            many.begin()
            tickets = []
            for step in many.steps:
                step.pack()
                call = step.call
                tickets.append(self._group.start(call.operation, call.taken, call.out, call.seconds))

            def deliver() -> list[Any]:
                for step in many.steps:
                    step.call.deliver()
                    step.unpack()
                return many.deliver()

            return Work(Tickets(tickets), deliver, self._waiter, owner)

    def repeater(self, name: str, form: Form, arrays: tuple[Array, Array] | None) -> Repeater:
        """Runs calls that `remembered` has seen, with no checks but those of what may have changed."""
        made = _engine.repeater(self._group, self.gate.latch, self.timeout, form.positional, form.keywords, arrays)
        self._repeaters[name] = made
        return made

    def remembered(self, build: Build, x: Any, out: Any, timeout: float | None, *args: Any) -> Any:
        """As `run(build, x, out, timeout, *args)`; from then on the repeater of that name knows calls like this one."""
        return self.run(self._remember, build, x, out, timeout, args)

    def _remember(self, build: Build, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...]) -> Ready:
        call = build(x, out, timeout, *args)
        if not isinstance(call, Call):
            return call
        target = call.target
        # Another array like x might be written itself where this one was staged.
        staged = target is not None and call.out is not x and (target.origin is x or target.result is x)
        if type(x) is np.ndarray and call.repeatable and not staged:
            copied = call.copies and call.out is x
            wants = _engine.NO_INPUT if call.inp is None else _engine.COPIED if copied else _engine.AS_IT_IS
            result = None if target is None else x if call.out is x else target.host.shape
            _engine.remember(self._repeaters[build.__name__], x, args, out is x, call.operation, wants, result)
        return call
