"""The module through which compiled JAX functions (XLA) call Python.

Invariant: as in `native/_engine.pyi`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

handler: Final[Any]  # a capsule for jax.ffi.register_ffi_target; any operands and results; attribute "number" (int64)

cuda_handler: Final[Any]  # the same for platform "CUDA"

def declare(minor: int) -> None:
    """Let the handlers tell XLA that they were made for version 0.`minor` of its interface.

    Call it before registering them."""

def install(run: Callable[[int, Sequence[memoryview], Sequence[memoryview]], str | None]) -> None:
    """Let the handler call `run(number, operands, results)`; tokens are left out. If `run` returns a text, it failed.

    The views are valid only during the call. `run` is called on XLA's threads, with the GIL.
    """

def install_on_device(run: Callable[[int, Sequence[int], Sequence[int], int], str | None]) -> None:
    """Let `cuda_handler` call `run(number, operands, results, stream)`, with addresses on the device, 0 for none.

    `stream`: the handle of the CUDA stream in which XLA computes the operands and uses the results.
    """
