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
    """The parameters of a communicator's method that decide whether a call repeats an earlier one, with their defaults.

    C++ code runs a repeated call without Python code. Arrays, `out`, `timeout`, `status` and `stream` are not among
    these parameters. Python code runs every call that is sent in a wire format.
    """

    positional: tuple[tuple[str, Any], ...]
    keywords: tuple[tuple[str, Any], ...]
    has_array: bool = True  # as the first argument of the method


def repeated(array: str | None) -> Callable[[F], F]:
    """A decorator that marks a communicator's method; `install` then makes C++ code run the method's repeated calls.

    `array`: the name of the parameter with the input array; None if there is none.
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
    """Replaces methods that `repeated` marks in class `kind` by C++ methods, which run repeated calls without Python.

    Returns, by method name, the parameters that have to be equal for a call to count as repeated. `kind` has to be
    derived from the C++ class `Repeating`. Every instance has a list `_repeaters` of C++ objects, one for each replaced
    method. An item is None until the first call of its method. The original method runs for a call that has not been
    seen before.
    """
    marked = {name: f for base in reversed(kind.__mro__) for name, f in vars(base).items() if hasattr(f, _MARK)}
    for index, (name, function) in enumerate(marked.items()):
        setattr(kind, name, _engine.method(function, index))
    return {name: getattr(function, _MARK) for name, function in marked.items()}
