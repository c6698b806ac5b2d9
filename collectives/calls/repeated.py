"""Methods that native code repeats by itself: the same call again goes to the engine without other Python code.

Invariant: a repeated method is called, documented and refused like the original one, and is bound to an instance that
lives as long as the call.
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


def install(kind: type) -> tuple[tuple[str, Form], ...]:
    """Replace the marked methods of a class derived from `Repeating` by repeated ones; each one's name and form.

    Instances have the repeaters: `_repeaters` is a tuple of Repeaters in that order. Calls that these do not know, and
    all calls while there are none, are passed to the original method.
    """
    marked = {name: f for base in reversed(kind.__mro__) for name, f in vars(base).items() if hasattr(f, _MARK)}
    for index, (name, function) in enumerate(marked.items()):
        setattr(kind, name, _engine.method(function, index))
    return tuple((name, getattr(function, _MARK)) for name, function in marked.items())
