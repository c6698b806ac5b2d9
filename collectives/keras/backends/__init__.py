"""The differences between Keras's backends: how gradients reach other ranks, and how errors are raised.

Invariant: one module for each backend, with the functions of `Backend`; a framework is imported by its own module
alone.
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
    """How gradients are exchanged; `DistributedOptimizer` explains them."""

    op: str = "average"
    compression: Compression | None = None
    bucket_bytes: int = BUCKET
    sparse_as_dense: bool = False
    error_feedback: bool = False
    missing: Literal["error", "zero"] = "error"
    timeout: float | None = None
    name: str = ""


class Accumulate(Protocol):
    """Called with the gradients of each backward pass; at every k-th pass, calls `step` with the means of k passes."""

    def __call__(self, gradients: Sequence[Any], step: Callable[[list[Any]], object]) -> None: ...


class Backend(Protocol):
    """The functions of a backend's module."""

    NOT_COMPILED: str  # error text if models with a compiled step (jit_compile) are unsupported; "" if supported

    def exchange(self, comm: Communicator, options: Options) -> Exchange: ...

    def typed_errors(self, found: Exchange) -> AbstractContextManager[None]:
        """A context in which errors of compiled steps are raised with their own types."""

    def accumulate(self, every: int) -> Accumulate:
        """Accumulation of `every` passes. NotImplementedError, with an alternative, if the backend has none."""

    def allreduce(self, tensor: Any, comm: Communicator) -> Any:
        """The sum over all ranks, differentiable: its gradient is the sum of all ranks' gradients."""

    def after(self, gradients: Sequence[Any]) -> AbstractContextManager[Any]:
        """A context whose traced operations run only after an exchange with these results has begun."""

    def unconverted(self, function: F) -> F:
        """The function, marked so that the framework's tracer does not rewrite it."""


def current() -> Backend:
    """The backend that Keras uses. NotImplementedError for an unsupported backend."""
    return cast(Backend, importlib.import_module(f"{__name__}.{backend()}"))
