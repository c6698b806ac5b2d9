"""Runs the calls of one communicator, one at a time, and keeps the way of a repeated call short.

Invariant: a call that passed all checks once is repeated without making them again only for what they depend
on and cannot have changed: shape, dtype, op, algorithm and memory layout are looked at every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeAlias

import numpy as np

from collectives.calls import Call, Calls
from collectives.gate import Gate
from collectives.prepare import Preparer
from collectives.schedule.layout import Layout
from collectives.schedule.table import Situation
from collectives.work import Waiter, Work
from native import _engine
from native._engine import Group, Operation, Plan

P = ParamSpec("P")
Build: TypeAlias = "Callable[..., Call]"  # (x, out, timeout, *args)

_MOST_KNOWN: Final = 1024
_AS_IT_IS, _COPIED, _NO_INPUT = range(3)  # what an operation wants of x
_ndarray, _empty, _may_share_memory = np.ndarray, np.empty, np.may_share_memory
# NumPy's flags as bits: contiguous and aligned; writeable too; owner of its memory
_READABLE, _WRITABLE, _OWNER = 0x101, 0x501, 0x4


class Runner:
    """Owns nothing: the group is closed by who made it."""

    def __init__(
        self, group: Group, rank: int, situation: Situation, layout: Layout, name: str, timeout: float
    ) -> None:
        self.timeout: Final = timeout
        self.gate: Final = Gate(name)
        self.calls: Final = Calls(group, Preparer(rank, situation, layout), timeout)
        self._group: Final = group
        self._execute: Final = group.run
        self._waiter: Final = Waiter()
        # `allreduce` for the user: native where the same call was made before, else by the method of that name.
        self.fast_allreduce: Final = _engine.repeater(group, self.gate.latch, timeout, self.allreduce)
        # (function, x's shape and dtype, other arguments, whether out is x) ->
        # (operation, the result's shape or None, what it wants of x)
        self._known: Final[dict[tuple[Any, ...], tuple[Operation, tuple[int, ...] | None, int]]] = {}

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

    def allreduce(
        self, x: Any, op: str = "sum", *, out: Any = None, algorithm: str = "auto", timeout: float | None = None
    ) -> Any:
        """The reduction of every rank's `x`, of the same shape and dtype everywhere; the same bits on every rank.

        `out`: an array of x's shape and dtype to write to, which may be `x` itself. Returns `out`, or a new array.
        """
        return self.run(self._remember_allreduce, x, out, timeout, op, algorithm)

    def repeat(self, build: Build, x: Any, out: Any, timeout: float | None, *args: Any) -> Any:
        """As `run(build, x, out, timeout, *args)`; where an array like `x` has passed before, with one lookup."""
        if timeout is None and type(x) is _ndarray:
            dtype = x.dtype
            try:
                # True == 1, but is no root: the type belongs to what is looked up.
                known = self._known.get((build, x.shape, dtype, args, type(args[0]), out is x))
            except TypeError:  # something unhashable: the long way says what is wrong with it
                known = None
            if known is not None:
                operation, shape, wants = known
                flags = x.flags.num
                if out is None:
                    fits = flags & _READABLE == _READABLE
                    result = None if shape is None else _empty(shape, dtype)
                elif out is x:
                    fits = flags & _WRITABLE == _WRITABLE
                    result = out if shape is not None else None
                else:
                    fits = flags & _READABLE == _READABLE and _is_apart(out, shape, dtype, x, flags)
                    result = out
                if fits:
                    inp = x if wants == _AS_IT_IS else x.copy() if wants == _COPIED else None
                    latch = self.gate.latch
                    if not latch.acquire():
                        self.gate.refuse()
                    try:
                        self._execute(operation, inp, result, self.timeout)
                    finally:
                        latch.release()
                    return result
        return self.run(self._remember, build, x, out, timeout, args)

    def plan(self, x: Any, out: Any, timeout: float | None, op: str, algorithm: str) -> Plan:
        """An allreduce of these arrays, ready to be called. Sends nothing. TypeError, ValueError for other arrays."""
        for name, array in (("x", x), ("out", out)):
            if type(array) is not _ndarray and not (array is None and name == "out"):
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

    def _remember_allreduce(self, x: Any, out: Any, timeout: float | None, op: str, algorithm: str) -> Call:
        call = self.calls.allreduce(x, out, timeout, op, algorithm)
        if type(x) is _ndarray and call.repeatable:
            same = out is x
            copied = same and call.inp is not x
            _engine.remember(self.fast_allreduce, x, op, algorithm, same, call.operation, copied)
        return call

    def _remember(self, build: Build, x: Any, out: Any, timeout: float | None, args: tuple[Any, ...]) -> Call:
        call = build(x, out, timeout, *args)
        if type(x) is _ndarray and call.repeatable:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            same = out is x
            wants = _NO_INPUT if call.inp is None else _COPIED if same and call.inp is not x else _AS_IT_IS
            shape = None if call.out is None else call.out.shape
            self._known[(build, x.shape, x.dtype, args, type(args[0]), same)] = call.operation, shape, wants
        return call


def _is_apart(out: Any, shape: Any, dtype: Any, x: Any, flags: int) -> bool:
    """Whether `out` is an array for such a result that has no memory in common with `x`, whose flags are given."""
    if type(out) is not _ndarray or out.shape != shape or out.dtype != dtype:
        return False
    bits = out.flags.num
    if bits & _WRITABLE != _WRITABLE:
        return False
    # Two arrays that own their memory do not share it; asking NumPy costs more than all the rest.
    return bool(bits & flags & _OWNER) or not _may_share_memory(x, out)
