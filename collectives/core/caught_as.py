"""Errors of this library that `except` clauses for a framework's errors catch as well.

Invariant: such an error keeps its text and attributes, and is still an instance of its own type; it only gains base
classes. A pickled or copied error loses these base classes, because a process that unpickles the error may not have the
framework.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from collectives.native.errors import CollectiveError

E = TypeVar("E", bound=BaseException)


def caught_as(error: E, *theirs: type[Exception], setup: Callable[[Any], None] | None = None) -> E:
    """Converts an error of this library, so that `except` clauses for a framework's exceptions catch it too.

    `theirs`: the framework's exception classes, most specific first. Returns an instance of a class derived from the
    type of `error` and from `theirs`. `setup` initialises the attributes that `theirs` expect. Returns `error` itself
    if it is not from this library, or is an instance of `theirs` already.
    """
    if not isinstance(error, CollectiveError) or not theirs or isinstance(error, theirs):
        return error
    made: Any = _joint((type(error), *theirs))(error)
    if setup is not None:
        setup(made)
    made.args = error.args
    vars(made).update(vars(error))
    found: E = made.with_traceback(error.__traceback__)
    found.__cause__ = error.__cause__
    found.__suppress_context__ = True
    return found


@functools.cache
def _joint(bases: tuple[type[BaseException], ...]) -> type[BaseException]:
    """A class derived from `bases`, named like the first of them, this library's error: tracebacks look the same."""
    ours = bases[0]

    def __init__(self: Any, plain: CollectiveError) -> None:
        ours.__init__(self, *plain.__reduce__()[1])

    def __reduce__(self: Any) -> Any:
        return ours, ours.__reduce__(self)[1]

    names = {
        "__init__": __init__,
        "__reduce__": __reduce__,
        "__str__": Exception.__str__,
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__doc__": ours.__doc__,
    }
    return type(ours.__name__, bases, names)
