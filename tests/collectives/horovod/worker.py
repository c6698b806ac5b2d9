"""Shared by the workers of these tests: scenarios, whose outcomes are printed as JSON.

Invariant: the outcome of a scenario that raises is its error, and the others run all the same; all ranks run the same
ones.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(scenarios: Iterable[Callable[[], Any]]) -> None:
    """Print a line for each: its name, and what it returned."""
    for scenario in scenarios:
        try:
            results = scenario()
        except Exception as error:
            results = failure(error)
        print(json.dumps([scenario.__name__, results]), flush=True)


def failure(error: BaseException) -> dict[str, str]:
    return {"error": type(error).__name__, "says": str(error)}


def raised(function: Callable[..., object], *args: Any, **kwargs: Any) -> dict[str, str]:
    """What it raised; empty if nothing."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return failure(error)
    return {}


def digest(arrays: Iterable[Any]) -> str:
    """Of the bits of all of them."""
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def differences(module: Any, functions: dict[str, str], values: str) -> list[str]:
    """Where a module does not have what signatures.py says of it; arguments of ours may follow."""
    found = [name for name in values.split() if not hasattr(module, name)]
    for path, wanted in functions.items():
        function = functools.reduce(getattr, path.split("."), module)
        given = _by_place(function)
        if given != wanted and not (given + " ").startswith(wanted + " "):
            found.append(f"{path}: {given}, not {wanted}")
    return found


def _by_place(function: Any) -> str:
    given = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            given.append(
                parameter.name
                if parameter.default is parameter.empty
                else f"{parameter.name}={_shown(parameter.default)}"
            )
    return " ".join(given)


def _shown(default: Any) -> str:
    if inspect.isclass(default):
        return {"NoneCompressor": "Compression.none"}[default.__name__]
    if getattr(default, "process_set_id", None) == 0:
        return "global_process_set"
    return str(default.name.title()) if hasattr(default, "name") else repr(default)


def example(name: str, *replaced: tuple[str, str], arguments: Iterable[str] = ()) -> dict[str, Any]:
    """What an example leaves behind, with some of its text replaced; `exit` is what it ended with, if it did."""
    text = (EXAMPLES / name).read_text()
    for old, new in replaced:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    left: dict[str, Any] = {}
    argv, sys.argv = sys.argv, [name, *arguments]
    with tempfile.TemporaryDirectory() as folder:  # what TensorFlow traces has to have a file
        path = Path(folder, name)
        path.write_text(text)
        try:
            left = runpy.run_path(str(path), left)
        except SystemExit as ended:
            left["exit"] = ended.code
        finally:
            sys.argv = argv
    return left
