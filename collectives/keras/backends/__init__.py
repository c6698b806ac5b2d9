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
    """Options of a gradient exchange; the docstring of `DistributedOptimizer` explains each of them."""

    op: str = "average"
    compression: Compression | None = None
    bucket_bytes: int = BUCKET
    sparse_as_dense: bool = False
    error_feedback: bool = False
    missing: Literal["error", "zero"] = "error"
    timeout: float | None = None
    name: str = ""


class Accumulate(Protocol):
    """A function to call with the gradients of each backward pass, which calls `step` only at every k-th pass.

    `step` gets the mean gradients of the last k passes. `Backend.accumulate` sets k.
    """

    def __call__(self, gradients: Sequence[Any], step: Callable[[list[Any]], object]) -> None: ...


class Backend(Protocol):
    """The functions that the module for each backend of Keras (TensorFlow, PyTorch, JAX) has."""

    NOT_COMPILED: str  # error text if models with a compiled step (jit_compile) are unsupported; "" if supported

    def exchange(self, comm: Communicator, options: Options) -> Exchange: ...

    def typed_errors(self, found: Exchange) -> AbstractContextManager[None]:
        """A context in which an error of the gradient exchange `found` in a compiled step is raised with its own type.

        Outside this context, a framework may raise an error of its own type instead.
        """

    def accumulate(self, every: int) -> Accumulate:
        """A function that accumulates the gradients of `every` backward passes.

        If the backend cannot accumulate, NotImplementedError, whose text names an alternative.
        """

    def allreduce(self, tensor: Any, comm: Communicator) -> Any:
        """The sum of `tensor` over all ranks; in backpropagation, all ranks' gradients of it are summed too."""

    def after(self, gradients: Sequence[Any]) -> AbstractContextManager[Any]:
        """A context: operations traced in it run only after the exchange with the results `gradients` has begun."""

    def unconverted(self, function: F) -> F:
        """`function`, marked so that the framework does not rewrite its code for tracing."""


def current() -> Backend:
    """The module of this package for the backend that Keras uses. NotImplementedError for an unsupported backend."""
    return cast(Backend, importlib.import_module(f"{__name__}.{backend()}"))
