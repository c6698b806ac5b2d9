"""The hook of a distributed optimizer, and how other modules find it.

Invariant: an optimizer has at most one hook, for its whole lifetime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from collectives.core.communicator import Communicator
from collectives.keras.framework import innermost

_ATTRIBUTE: Final = "_collectives_hook"


class Exchange(Protocol):
    """Gradients of all ranks in place of this rank's: None and sparse ones too, in the same order."""

    calls: int  # exchanges that really ran so far, counted as they run
    bytes_sent: int
    error: BaseException | None

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]: ...


class Hook:
    """`comm` is the user's; `every`, how many backward passes there are to one exchange."""

    def __init__(self, comm: Communicator, exchange: Exchange, every: int) -> None:
        self.comm: Final = comm
        self.exchange: Final = exchange
        self.every: Final = every
        self.inside = False  # a method that has exchanged already calls others that would

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        self.inside, before = True, self.inside
        try:
            yield
        finally:
            self.inside = before


def attach(optimizer: Any, hook: Hook) -> None:
    # Around Keras's own setting of attributes, which looks for state to track and save.
    object.__setattr__(optimizer, _ATTRIBUTE, hook)


def hook_of(optimizer: Any) -> Hook | None:
    """The hook of a distributed optimizer; None for any other one, also one that has a distributed one inside."""
    found: Hook | None = getattr(optimizer, "__dict__", {}).get(_ATTRIBUTE)
    return found


def wrongly_nested(optimizer: Any) -> bool:
    """Whether loss scaling is around the exchange, so that each rank decides for itself whether to take part."""
    return hook_of(optimizer) is None and hook_of(innermost(optimizer)) is not None


NESTING: Final = (
    "the exchange of gradients lies inside a LossScaleOptimizer, which each rank enters or not by its own gradients: "
    "ranks would wait for each other for ever. Write DistributedOptimizer(LossScaleOptimizer(optimizer)); under "
    "mixed_float16 `compile` adds loss scaling by itself only where there is none"
)
