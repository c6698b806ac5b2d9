"""The arrays of a reduction: what is read, what is written, and whether they are the same.

Invariant: ranks check alike, so that what one refuses all refuse.
"""

from __future__ import annotations

from typing import Any

from collectives.arrays.array import Array, Target, in_place, output, reading, updating


def operands(x: Any, out: Any, receives: bool) -> tuple[Array, Target | None, bool]:
    """What is read; where the result goes, of x's shape and dtype; and whether both are the same memory."""
    if out is x and out is not None:
        target: Target | None = updating(x)
        assert target is not None
        return target.host, target, receives
    inp = reading(x)
    # An `out` is checked on every rank alike, so that a wrong one does not leave the others waiting.
    target = output(out, inp.shape, inp.dtype, x) if receives or out is not None else None
    return inp, target, target is not None and in_place(inp, target.host) and receives
