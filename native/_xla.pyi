"""The way from XLA to Python.

Invariant: as in `native/_engine.pyi`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

handler: Final[Any]  # a capsule, for jax.ffi.register_ffi_target: any operands and results, attribute "number" (int64)

def declare(minor: int) -> None:
    """Let the handler tell XLA that it was made for version 0.`minor` of its interface. Before it is registered."""

def install(run: Callable[[int, Sequence[memoryview], Sequence[memoryview]], str | None]) -> None:
    """Let the handler call `run(number, operands, results)`; tokens are left out. A text that it returns is an error.

    The views are valid during the call alone. `run` is called on XLA's threads, with the GIL.
    """
