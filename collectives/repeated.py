"""Methods that the engine repeats by itself: the same call again goes from Python to it with nothing in between.

Invariant: a repeated method is called, documented and refused as it was written; what stands in for it on an
instance belongs to that instance and does not keep it alive.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_NOT_KEYS: Final = ("self", "out", "timeout")
_MARK: Final = "_repeated"


class Form(NamedTuple):
    """The parameters, with their defaults, that an operation depends on besides its arrays."""

    positional: tuple[tuple[str, Any], ...]
    keywords: tuple[tuple[str, Any], ...]


def repeated(array: str | None) -> Callable[[F], F]:
    """Mark a method whose first parameter, named `array`, is the array that its operation is about, if any."""

    def mark(function: F) -> F:
        parameters = [p for n, p in inspect.signature(function).parameters.items() if n not in (*_NOT_KEYS, array)]
        form = Form(
            tuple((p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD),
            tuple((p.name, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY),
        )
        setattr(function, _MARK, form)
        return function

    return mark


def repeated_methods(kind: type) -> dict[str, tuple[Callable[..., Any], Form]]:
    """The marked ones by name."""
    return {name: (f, getattr(f, _MARK)) for name, f in vars(kind).items() if hasattr(f, _MARK)}


def long_way(instance: Any, function: Callable[..., Any], refuse: Callable[[], NoReturn]) -> Callable[..., Any]:
    """`function` as a method of `instance`, whose life it does not prolong; once that is over, `refuse` raises why."""
    reference = weakref.ref(instance)

    def call(*args: Any, **kwargs: Any) -> Any:
        instance = reference()
        if instance is None:
            refuse()
        return function(instance, *args, **kwargs)

    for name in ("__name__", "__qualname__", "__doc__"):
        setattr(call, name, getattr(function, name))
    call.__wrapped__ = MethodType(function, weakref.proxy(instance))  # type: ignore[attr-defined]  # for its signature
    return call
