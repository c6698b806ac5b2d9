"""Op: a reduction by a function of the caller.

Invariant: the library assumes that the function is associative, and otherwise uses only declared properties.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from collectives.arrays.array import Array, Dtype

Function: TypeAlias = "Callable[[Array, Array], Any]"


class Op:
    """A function of two arrays, to be passed as `op`: `comm.allreduce(x, op=Op(np.hypot, commutative=True))`.

    `function(a, b)` gets two arrays, which it must not change, and returns an array of their shape and dtype. It is a
    NumPy ufunc, or any other associative function. `a` comes from lower ranks than `b`. The arrays have x's shape (for
    reduce_scatter, the shape of a block). With `elementwise` they may also be flat pieces of x. Before anything is
    sent, the function is tried on this rank's own data, once for each shape and dtype, so that an invalid function does
    not leave other ranks waiting. All ranks have to pass functions of the same name with the same declarations.

    `commutative`: function(a, b) is function(b, a), so that operands may be combined in any order; otherwise they are
    combined in the order of ranks. `elementwise`: each element of the result depends only on the elements at its
    position, so that large arrays may be divided. `identity`: the value e with function(e, x) = x, which `exscan`
    returns on rank 0. A ufunc is always elementwise, and provides its identity.

    Results have the same bits on every rank. TypeError for an object that cannot be called with two arrays.
    """

    __slots__ = ("_tried", "commutative", "elementwise", "function", "identity", "name")

    def __init__(
        self, function: Function, *, commutative: bool = False, elementwise: bool | None = None, identity: Any = None
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        ufunc: Any = function if isinstance(function, np.ufunc) else None
        if ufunc is not None and (ufunc.nin, ufunc.nout) != (2, 1):
            raise TypeError(f"{ufunc!r} takes {ufunc.nin} arrays and gives {ufunc.nout}: it reduces nothing")
        self.function: Final = function
        self.commutative: Final = bool(commutative)
        self.elementwise: Final = ufunc is not None if elementwise is None else bool(elementwise)
        self.identity: Final = ufunc.identity if ufunc is not None and identity is None else identity
        self.name: Final = str(getattr(function, "__qualname__", None) or getattr(function, "__name__", function))
        self._tried: Final[set[tuple[tuple[int, ...], Dtype]]] = set()

    def __repr__(self) -> str:
        declared = [name for name in ("commutative", "elementwise") if getattr(self, name)]
        return f"Op({', '.join([self.name, *declared])})"

    @property
    def code(self) -> int:
        """32 bits that almost certainly differ between ops that ranks must not mix."""
        return zlib.crc32(f"{self.name} {self.commutative} {self.elementwise}".encode())

    def combine(self, a: Array, b: Array, out: Array) -> None:
        """out = function(a, b). TypeError, ValueError for a result of another shape or dtype."""
        a, b = _to_read(a), _to_read(b)
        if isinstance(self.function, np.ufunc):
            self.function(a, b, out=out)
            return
        result = np.asarray(self.function(a, b))
        if result.shape != out.shape:
            raise ValueError(f"op {self.name} gives shape {result.shape} for arrays of shape {out.shape}")
        if result.dtype != out.dtype:
            raise TypeError(f"op {self.name} gives dtype {result.dtype} for arrays of dtype {out.dtype}")
        out[...] = result

    def try_on(self, x: Array) -> None:
        """Call the function on `x`, unless it was called for this shape and dtype before."""
        key = (x.shape, x.dtype)
        if key not in self._tried and len(self._tried) < 1024:
            self.combine(x, x, np.empty_like(x))
            self._tried.add(key)


Reduction: TypeAlias = "str | Op | Function"  # possible values of `op`


def op_of(value: Any) -> Op:
    """`value` as an Op: a function without declarations counts as neither commutative nor elementwise."""
    if isinstance(value, Op):
        return value
    if not callable(value):
        raise TypeError(f"op must be a name, a function or a collectives.Op, not {value!r}")
    return Op(value)


def identity_of(op: str, dtype: Dtype) -> Any:
    """The value e of `dtype` with e op x = x, for an op that the engine supports for this dtype."""
    if op in ("sum", "bor", "bxor", "lor", "lxor"):
        return 0
    if op in ("prod", "land"):
        return 1
    if op == "band":
        return ~np.zeros((), dtype)
    if dtype == np.bool_:
        return op == "min"
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min
    sign = 1 if op == "min" else -1
    return dtype.type(sign * np.inf)


def _to_read(array: Array) -> Array:
    view: Array = array.view()
    view.flags.writeable = False
    return view
