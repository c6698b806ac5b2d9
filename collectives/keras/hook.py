"""The hook: an attribute of a distributed optimizer that holds the communicator and the exchange of gradients.

Invariant: an optimizer gets at most one hook, and keeps this hook for its whole lifetime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from collectives.core.communicator import Communicator
from collectives.keras.framework import innermost

_ATTRIBUTE: Final = "_collectives_hook"


class Exchange(Protocol):
    """A function that reduces gradients over all ranks, and returns the results in the order of the gradients.

    Each gradient is dense, sparse or None.
    """

    calls: int  # exchanges that have run, not only been traced
    bytes_sent: int
    error: BaseException | None

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]: ...


class Hook:
    """An attribute that `DistributedOptimizer` adds to an optimizer, for the exchange of the optimizer's gradients.

    `comm`: the user's communicator. `exchange`: the function that reduces gradients over all ranks. `every`: the number
    of backward passes before each exchange.
    """

    def __init__(self, comm: Communicator, exchange: Exchange, every: int) -> None:
        self.comm: Final = comm
        self.exchange: Final = exchange
        self.every: Final = every
        self.inside = False  # a method that has exchanged calls others, which must not

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        self.inside, before = True, self.inside
        try:
            yield
        finally:
            self.inside = before


def attach(optimizer: Any, hook: Hook) -> None:
    # Avoids Keras's own __setattr__, which looks for state to track and save.
    object.__setattr__(optimizer, _ATTRIBUTE, hook)


def hook_of(optimizer: Any) -> Hook | None:
    """Returns the `Hook` that `DistributedOptimizer` has added to `optimizer`, for the exchange of its gradients.

    Returns None for any other optimizer, even if it wraps a distributed optimizer.
    """
    found: Hook | None = getattr(optimizer, "__dict__", {}).get(_ATTRIBUTE)
    return found


def wrongly_nested(optimizer: Any) -> bool:
    """Whether `optimizer` is a LossScaleOptimizer around an optimizer that exchanges gradients, which is an error.

    Each rank would decide by its own gradients whether to skip the exchange, so ranks would hang.
    """
    return hook_of(optimizer) is None and hook_of(innermost(optimizer)) is not None


NESTING: Final = (
    "the exchange of gradients lies inside a LossScaleOptimizer, which each rank enters or not by its own gradients: "
    "ranks would wait for each other for ever. Write DistributedOptimizer(LossScaleOptimizer(optimizer)); under "
    "mixed_float16 `compile` adds loss scaling by itself only where there is none"
)
