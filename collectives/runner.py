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
from native._engine import Group, Operation

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
        # (x's shape and dtype, op, algorithm, whether out is x) -> (operation, what it wants of x);
        # (function, x's shape and dtype, other arguments, whether out is x) ->
        # (operation, the result's shape or None, what it wants of x)
        self._allreduces: Final[dict[tuple[Any, ...], tuple[Operation, int]]] = {}
        self._known: Final[dict[tuple[Any, ...], tuple[Operation, tuple[int, ...] | None, int]]] = {}

    def run(self, build: Callable[P, Call], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Check and prepare the call by `build`, run it on this thread, give its result."""
        lock = self.gate.lock
        if not lock.acquire(False):
            raise self.gate.busy()
        try:
            call = build(*args, **kwargs)
            self._group.run(call.operation, call.inp, call.out, call.seconds)
            return call.deliver()
        finally:
            lock.release()

    def start(self, build: Callable[P, Call], *args: P.args, **kwargs: P.kwargs) -> Work[Any]:
        """The same in the background."""
        lock = self.gate.lock
        if not lock.acquire(False):
            raise self.gate.busy()
        try:
            call = build(*args, **kwargs)
            ticket = self._group.start(call.operation, call.inp, call.out, call.seconds)
            return Work(ticket, call.deliver, self._waiter)
        finally:
            lock.release()

    def allreduce(self, x: Any, out: Any, timeout: float | None, op: str, algorithm: str) -> Any:
        """As `repeat(calls.allreduce, ...)`, spelled out: this is the call that training loops make."""
        if timeout is None and type(x) is _ndarray:
            shape, dtype, same = x.shape, x.dtype, out is x
            try:
                known = self._allreduces.get((shape, dtype, op, algorithm, same))
            except TypeError:
                known = None
            if known is not None:
                operation, wants = known
                flags, result = x.flags.num, out
                fits = flags & _READABLE == _READABLE
                if out is None:
                    result = _empty(shape, dtype)
                elif same:
                    fits = flags & _WRITABLE == _WRITABLE
                elif type(out) is _ndarray and out.shape == shape and out.dtype is dtype:
                    bits = out.flags.num
                    # Two arrays that own their memory do not share it; asking NumPy costs more than all the rest.
                    fits = (
                        fits
                        and bits & _WRITABLE == _WRITABLE
                        and (bits & flags & _OWNER != 0 or not _may_share_memory(x, out))
                    )
                else:
                    fits = False
                if fits:
                    lock = self.gate.lock
                    if not lock.acquire(False):
                        raise self.gate.busy()
                    try:
                        self._execute(operation, x if wants == _AS_IT_IS else x.copy(), result, self.timeout)
                    finally:
                        lock.release()
                    return result
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
                    lock = self.gate.lock
                    if not lock.acquire(False):
                        raise self.gate.busy()
                    try:
                        self._execute(operation, inp, result, self.timeout)
                    finally:
                        lock.release()
                    return result
        return self.run(self._remember, build, x, out, timeout, args)

    def _remember_allreduce(self, x: Any, out: Any, timeout: float | None, op: str, algorithm: str) -> Call:
        call = self.calls.allreduce(x, out, timeout, op, algorithm)
        if type(x) is _ndarray and call.repeatable:
            if len(self._allreduces) >= _MOST_KNOWN:
                self._allreduces.clear()
            same = out is x
            wants = _COPIED if same and call.inp is not x else _AS_IT_IS
            self._allreduces[(x.shape, x.dtype, op, algorithm, same)] = call.operation, wants
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
