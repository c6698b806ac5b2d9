"""`native/_engine.pyi` says what the compiled engine offers: the same names, parameters and defaults.

Invariant: compared in both directions. (mypy's stubtest cannot look into nanobind's functions.)
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from collectives import native
from collectives.native import _engine

Parameters = list[tuple[str, Any]]
Declared = dict[str, "Parameters | list[Parameters] | None"]  # of functions with several forms: of each of them
REQUIRED = "required"


def parameters(function: ast.FunctionDef) -> Parameters:
    names = [argument.arg for argument in function.args.args]
    defaults = [ast.literal_eval(default) for default in function.args.defaults]
    return list(zip(names, [REQUIRED] * (len(names) - len(defaults)) + defaults, strict=True))


def declared(body: list[ast.stmt], prefix: str = "") -> Declared:
    """What a stub declares: functions with their parameters, everything else with None."""
    found: Declared = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            decorators = [d.id for d in node.decorator_list if isinstance(d, ast.Name)]
            is_property = "property" in decorators
            if "overload" in decorators:
                forms: Any = found.setdefault(prefix + node.name, [])
                forms.append(parameters(node))
                continue
            # What a type without a signature of its own takes is not to be seen: whether it can be called is.
            opaque = is_property or node.name == "__call__"
            found[prefix + node.name] = None if opaque else parameters(node)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = None
            found |= declared(node.body, f"{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[prefix + node.target.id] = None
    return found


def _signature(text: str, defaults: Any) -> ast.FunctionDef:
    text = re.sub(r"\\(\d+)", lambda place: repr(defaults[int(place[1])]), text)
    (function,) = ast.parse(f"{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return function


def compiled(namespace: dict[str, Any], prefix: str = "") -> Declared:
    """The same for what the extension holds, from the signatures that nanobind keeps."""
    found: Declared = {}
    for name, value in namespace.items():
        overloads = getattr(value, "__nb_signature__", None)
        if overloads:
            forms = [parameters(_signature(text, defaults)) for text, _, defaults in overloads]
            found[prefix + name] = forms[0] if len(forms) == 1 else forms
        elif not name.startswith("__") or name == "__call__":
            found[prefix + name] = None
            if isinstance(value, type):
                found |= compiled(dict(vars(value)), f"{name}.")
    return found


def test_the_stub_matches_the_engine() -> None:
    stub = ast.parse((Path(native.__file__).parent / "_engine.pyi").read_text())
    assert declared(stub.body) == compiled(vars(_engine))
