"""Op: a reduction by a Python function of the caller.

Invariant: the library assumes that the function is associative. It relies on other properties only if the caller
declares them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np

from collectives.arrays.array import Array, Dtype

Function: TypeAlias = "Callable[[Array, Array], Any]"


class Op:
    """A reduction by a function of two arrays: `comm.allreduce(x, op=Op(np.hypot, commutative=True))`.

    `function(a, b)` is a NumPy ufunc, or any other associative function. It must not change its two arguments, and
    returns an array of their shape and dtype. The arguments have the shape of `x` (in reduce_scatter, that of a block).
    All ranks have to pass functions of the same name, with the same `commutative` and `elementwise`.

    - `commutative`: function(a, b) equals function(b, a), so arrays may be combined in any order. Otherwise they are
      combined in the order of ranks, and `a` comes from lower ranks than `b`.
    - `elementwise`: each element of the result depends only on the elements of `a` and `b` at the same position. So
      large arrays may be divided, and `a` and `b` may be one-dimensional pieces of `x`.
    - `identity`: the value e with function(e, x) = x, which `exscan` returns on rank 0

    For a ufunc, `elementwise` and `identity` are known and need not be given. If all ranks get the result, as in
    allreduce, its bits are the same on all ranks.

    Before anything is sent, each rank calls the function once with its own data, for each new shape and dtype. So an
    invalid function raises an error at once, and other ranks do not wait for messages that never come. Raises TypeError
    if `function` cannot be called with two arrays.
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
        """A 32-bit hash of the function's name and properties, by which ranks notice that they passed different ops."""
        return zlib.crc32(f"{self.name} {self.commutative} {self.elementwise}".encode())

    def combine(self, a: Array, b: Array, out: Array) -> None:
        """Writes function(a, b) to `out`. TypeError or ValueError if the dtype or shape does not fit `out`."""
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
        """Calls function(x, x); raises TypeError or ValueError if the returned array has another dtype or shape than x.

        Does nothing for a shape and dtype that it has tried before.
        """
        key = (x.shape, x.dtype)
        if key not in self._tried and len(self._tried) < 1024:
            self.combine(x, x, np.empty_like(x))
            self._tried.add(key)


Reduction: TypeAlias = "str | Op | Function"  # possible values of `op`


def op_of(value: Any) -> Op:
    """Returns `value` itself if it is an Op, or an Op that calls `value` if `value` is a function."""
    if isinstance(value, Op):
        return value
    if not callable(value):
        raise TypeError(f"op must be a name, a function or a collectives.Op, not {value!r}")
    return Op(value)


def identity_of(op: str, dtype: Dtype) -> Any:
    """The identity element of the reduction `op`: the value e with op(e, x) = x for each x of `dtype`.

    For example 0 for "sum". `dtype` has to be one for which `op` is defined.
    """
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
