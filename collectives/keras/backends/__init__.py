"""The differences between Keras's backends: how gradients reach other ranks, and how errors are raised.

Invariant: each backend (TensorFlow, PyTorch, JAX) has one module in this package, which defines the functions of
`Backend`. No other module of the package imports the backend's framework.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

from collectives.core.communicator import Communicator
from collectives.gradients import BUCKET
from collectives.gradients.wire import Compression
from collectives.keras.framework import backend
from collectives.keras.hook import Exchange

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Options:
    """How gradients are exchanged. The docstring of `DistributedOptimizer` explains each option."""

    op: str = "average"
    compression: Compression | None = None
    bucket_bytes: int = BUCKET
    sparse_as_dense: bool = False
    error_feedback: bool = False
    missing: Literal["error", "zero"] = "error"
    timeout: float | None = None
    name: str = ""


class Accumulate(Protocol):
    """A function to call with the gradients of each backward pass; every k-th call runs `step`.

    `step` gets the means of the gradients of the last k passes. k is the argument of `Backend.accumulate`.
    """

    def __call__(self, gradients: Sequence[Any], step: Callable[[list[Any]], object]) -> None: ...


class Backend(Protocol):
    """The functions that this package needs for each backend of Keras; each backend has a module with them."""

    NOT_COMPILED: str  # error text if models with a compiled step (jit_compile) are unsupported; "" if supported

    def exchange(self, comm: Communicator, options: Options) -> Exchange: ...

    def typed_errors(self, found: Exchange) -> AbstractContextManager[None]:
        """Returns a context manager in which errors of `found`, the exchange of gradients, have their own types.

        Without this context manager, a framework may raise errors of its own types if the training step is compiled.
        """

    def accumulate(self, every: int, sparse_as_dense: bool) -> Accumulate:
        """Returns a function that accumulates the gradients of `every` backward passes.

        If `sparse_as_dense`, sparse gradients are made dense before they are added up; else they raise ValueError.
        Raises NotImplementedError, whose text names an alternative, if the backend cannot do that.
        """

    def allreduce(self, tensor: Any, comm: Communicator) -> Any:
        """Returns the sum of `tensor` over all ranks. In backpropagation, gradients are summed over all ranks too."""

    def after(self, gradients: Sequence[Any]) -> AbstractContextManager[Any]:
        """Returns a context manager: operations traced in it run only after the exchange of gradients has begun.

        `gradients`: the results of that exchange.
        """

    def unconverted(self, function: F) -> F:
        """Returns `function`, marked so that the framework does not rewrite the function's code to trace it."""


def current() -> Backend:
    """The module of this package for the backend that Keras uses. NotImplementedError for an unsupported backend."""
    return cast(Backend, importlib.import_module(f"{__name__}.{backend()}"))
