"""Methods whose repeated calls native code passes to the engine, without running Python code.

Invariant: a replaced method has the arguments, the documentation and the errors of the original, and its instance lives
as long as the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from collectives.native import _engine

F = TypeVar("F", bound=Callable[..., Any])

_NOT_KEYS: Final = ("self", "out", "status", "timeout")
_MARK: Final = "_repeated"


class Form(NamedTuple):
    """The parameters, with their defaults, that an operation depends on besides its arrays."""

    positional: tuple[tuple[str, Any], ...]
    keywords: tuple[tuple[str, Any], ...]
    has_array: bool = True  # as the first argument of the method


def repeated(array: str | None) -> Callable[[F], F]:
    """Mark a method to be replaced by `install`. `array`: its first parameter if that is an array, else None."""

    def mark(function: F) -> F:
        parameters = [p for n, p in inspect.signature(function).parameters.items() if n not in (*_NOT_KEYS, array)]
        form = Form(
            tuple((p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD),
            tuple((p.name, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY),
            array is not None,
        )
        setattr(function, _MARK, form)
        return function

    return mark


def install(kind: type) -> dict[str, Form]:
    """Replace marked methods of a class derived from `Repeating` by native methods; returns their forms, by name.

    `_repeaters` of an instance is a list of Repeaters in that order, None for a Repeater that is not made yet. Calls
    that a Repeater does not know, and all calls while there is none, are passed to the original method.
    """
    marked = {name: f for base in reversed(kind.__mro__) for name, f in vars(base).items() if hasattr(f, _MARK)}
    for index, (name, function) in enumerate(marked.items()):
        setattr(kind, name, _engine.method(function, index))
    return {name: getattr(function, _MARK) for name, function in marked.items()}
