"""Converts calls of a process group's methods, which torch allows in several forms, to one form.

    pg.allreduce([tensor], AllreduceOptions())   pg.allreduce([tensor], ReduceOp.MAX)   pg.allreduce(tensor, op=...)

Invariant: for each form the method gets its tensors and an options object. Omitted arguments have torch's defaults; an
argument of 0, such as root=0, does not count as omitted. Calls of any other form raise TypeError before anything is
sent.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

from torch.distributed import ReduceOp

Method: TypeAlias = "Callable[..., Any]"

_FIELDS: Final = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def overloaded(options: Any, *tensors: str, instead: tuple[str, ...] = ("timeout",)) -> Callable[[Method], Method]:
    """Returns a decorator for a process group's method, which then accepts all argument lists that torch allows.

    The method itself takes tensors and an options object; `options` is the class of this object. Callers may instead
    pass the values that the object would contain: `instead` lists their names ("root", "op" or "timeout") in order.
    `tensors` names the tensor arguments. "tensors|tensor" means that the argument is named "tensors" in one argument
    list and "tensor" in another.
    """
    parameters = [*tensors, "|".join(("opts", instead[0])), *instead[1:]]
    places = {name: place for place, names in enumerate(parameters) for name in names.split("|")}
    given = len(tensors)

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **named: Any) -> Any:
            if len(args) == given + 1 and not named and type(args[given]) is options:
                return method(self, *args)  # nearly all calls, as torch itself calls so
            if len(args) > len(parameters):
                raise TypeError(f"{method.__name__} takes at most {len(parameters)} arguments, not {len(args)}")
            found = dict(enumerate(args))
            for name, value in named.items():
                place = places.get(name)
                if place is None:
                    raise TypeError(f"{method.__name__} has no argument {name!r}; it has {', '.join(places)}")
                if place in found:
                    raise TypeError(f"{method.__name__}: {name!r} is given twice")
                found[place] = value
            for place in range(given):
                if place not in found:
                    raise TypeError(f"{method.__name__} needs {parameters[place].replace('|', ' or ')}")
            rest = [(name, found.get(given + i)) for i, name in enumerate(instead)]
            return method(self, *(found[place] for place in range(given)), _options(options, method.__name__, rest))

        return call

    return decorate


def _options(options: Any, name: str, rest: list[tuple[str, Any]]) -> Any:
    if isinstance(rest[0][1], options):
        if any(value is not None for _, value in rest[1:]):
            raise TypeError(f"{name}: give options, or {' and '.join(field for field, _ in rest)}, but not both")
        return rest[0][1]
    made = options()
    for field, value in rest:
        if value is not None:
            setattr(made, _FIELDS[field], _checked(name, field, value))
    return made


def _checked(name: str, field: str, value: Any) -> Any:
    if field == "root":
        try:
            return operator.index(value)
        except TypeError:
            raise TypeError(f"{name}: root is a rank, not {type(value).__name__}") from None
    kinds: Any = timedelta if field == "timeout" else (ReduceOp, ReduceOp.RedOpType)
    if not isinstance(value, kinds):
        wanted = "a datetime.timedelta" if field == "timeout" else "a ReduceOp"
        raise TypeError(f"{name}: {field} is {wanted}, not {type(value).__name__}")
    return value
