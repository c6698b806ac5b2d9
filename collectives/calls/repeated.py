"""Replaces methods of a communicator by native ones, which pass repeated calls to the engine without Python code.

Invariant: a native method has the arguments, the documentation and the errors of the original, and keeps the
communicator alive during the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from collectives.native import _engine

F = TypeVar("F", bound=Callable[..., Any])

_NOT_KEYS: Final = ("self", "out", "status", "stream", "timeout")
_MARK: Final = "_repeated"


class Form(NamedTuple):
    """The parameters of a method that have to be equal for a call to count as repeated, with their defaults.

    Arrays are not among them.
    """

    positional: tuple[tuple[str, Any], ...]
    keywords: tuple[tuple[str, Any], ...]
    has_array: bool = True  # as the first argument of the method


def repeated(array: str | None) -> Callable[[F], F]:
    """A decorator that marks a method of a communicator, which `install` then replaces by a native one.

    `array`: the name of the parameter with the input array, None if none.
    """

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
    """Replace the marked methods of class `kind` by native methods; returns the Form of each, by method name.

    `kind` is derived from the native class `Repeating`. Each instance has a list `_repeaters`, in the order of the
    returned names: the native object that repeats calls of a method, or None before that object is made. Without it,
    and for calls that it has not seen before, the original method runs.
    """
    marked = {name: f for base in reversed(kind.__mro__) for name, f in vars(base).items() if hasattr(f, _MARK)}
    for index, (name, function) in enumerate(marked.items()):
        setattr(kind, name, _engine.method(function, index))
    return {name: getattr(function, _MARK) for name, function in marked.items()}
