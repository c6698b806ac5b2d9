"""The module through which compiled JAX functions (XLA) call Python.

Invariant: as in `native/_engine.pyi`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

handler: Final[Any]  # a capsule for jax.ffi.register_ffi_target; any operands and results; attribute "number" (int64)

def declare(minor: int) -> None:
    """Let the handler tell XLA that it was made for version 0.`minor` of its interface. Call before registering it."""

def install(run: Callable[[int, Sequence[memoryview], Sequence[memoryview]], str | None]) -> None:
    """Let the handler call `run(number, operands, results)`; tokens are left out. If `run` returns a text, it failed.

    The views are valid only during the call. `run` is called on XLA's threads, with the GIL.
    """
