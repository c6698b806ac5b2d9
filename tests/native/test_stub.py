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
REQUIRED = "required"


def parameters(function: ast.FunctionDef) -> Parameters:
    names = [argument.arg for argument in function.args.args]
    defaults = [ast.literal_eval(default) for default in function.args.defaults]
    return list(zip(names, [REQUIRED] * (len(names) - len(defaults)) + defaults, strict=True))


def declared(body: list[ast.stmt], prefix: str = "") -> dict[str, Parameters | None]:
    """What a stub declares: functions with their parameters, everything else with None."""
    found: dict[str, Parameters | None] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)
            # What a type without a signature of its own takes is not to be seen: whether it can be called is.
            opaque = is_property or node.name == "__call__"
            found[prefix + node.name] = None if opaque else parameters(node)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = None
            found |= declared(node.body, f"{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[prefix + node.target.id] = None
    return found


def compiled(namespace: dict[str, Any], prefix: str = "") -> dict[str, Parameters | None]:
    """The same for what the extension holds, from the signatures that nanobind keeps."""
    found: dict[str, Parameters | None] = {}
    for name, value in namespace.items():
        overloads = getattr(value, "__nb_signature__", None)
        if overloads:
            ((text, _, defaults),) = overloads
            for place in re.findall(r"\\(\d+)", text):
                text = text.replace(f"\\{place}", repr(defaults[int(place)]))
            (function,) = ast.parse(f"{text}: ...").body
            assert isinstance(function, ast.FunctionDef)
            found[prefix + name] = parameters(function)
        elif not name.startswith("__") or name == "__call__":
            found[prefix + name] = None
            if isinstance(value, type):
                found |= compiled(dict(vars(value)), f"{name}.")
    return found


def test_the_stub_matches_the_engine() -> None:
    stub = ast.parse((Path(native.__file__).parent / "_engine.pyi").read_text())
    assert declared(stub.body) == compiled(vars(_engine))
