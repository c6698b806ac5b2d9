"""The arrays of a reduction: input, output, and whether both are the same memory.

Invariant: all ranks make the same checks, so if one raises, all raise.
"""

from __future__ import annotations

from typing import Any

from collectives.arrays.array import Array, Target, in_place, output, reading, updating


def operands(x: Any, out: Any, receives: bool) -> tuple[Array, Target | None, bool]:
    """The input; the destination of the result, of x's shape and dtype; and whether both are the same memory."""
    if out is x and out is not None:
        target: Target | None = updating(x)
        assert target is not None
        return target.host, target, receives
    inp = reading(x)
    # An `out` is checked on every rank, so that an invalid one does not leave other ranks waiting.
    target = output(out, inp.shape, inp.dtype, x) if receives or out is not None else None
    return inp, target, target is not None and in_place(inp, target.host) and receives
