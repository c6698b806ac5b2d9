"""Checks the input and output arrays of a reduction, and finds out whether both are the same memory.

Invariant: all ranks make the same checks, even those that get no result, so invalid arrays raise on all ranks.
"""

from __future__ import annotations

from typing import Any

from collectives.arrays.array import Array, Target, in_place, output, reading, updating


def operands(x: Any, out: Any, receives: bool) -> tuple[Array, Target | None, bool]:
    """Checks the arrays `x` and `out` of a reduction, and returns the input and the destination of the result.

    Also returns whether both are the same memory. The destination has the shape and dtype of `x`; it is None on ranks
    that get no result (`receives` is False). Raises TypeError or ValueError for unsuitable arrays.
    """
    if out is x and out is not None:
        target: Target | None = updating(x)
        assert target is not None
        return target.host, target, receives
    inp = reading(x)
    # An `out` is checked on every rank, so that an invalid one does not leave other ranks waiting.
    target = output(out, inp.shape, inp.dtype, x) if receives or out is not None else None
    return inp, target, target is not None and in_place(inp, target.host) and receives
