"""The registered engines, in the order in which a communicator asks them whether they accept a call.

Invariant: engines that were passed to `register` come first, then the engines of installed packages, sorted by name.
If an engine cannot be loaded, `init` raises an error; no engine is skipped silently.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import Any, Final

from collectives.engines.engine import Engine
from collectives.native.errors import TransportUnavailable

ENTRY_POINTS: Final = "pycollectives.engines"
NATIVE: Final = "native"  # the name of this library's engine in the text of explain

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")
_METHODS: Final = ("accepts", "collective")
_lock: Final = threading.Lock()
_registered: Final[list[Engine]] = []


def register(engine: Engine) -> None:
    """Make `engine`, an object that runs whole collectives, available to communicators made by later `init` calls.

    Every rank has to register the same engines, in the same order. Raises TypeError if `engine` lacks a method of the
    class `Engine`, and ValueError if its name is invalid or in use.
    """
    check(engine)
    with _lock:
        if any(other.name == engine.name for other in _registered):
            raise ValueError(f"there is an engine {engine.name!r} already")
        _registered.append(engine)


def unregister(name: str) -> None:
    """Remove the registered engine with this name; communicators that exist already keep it.

    Raises ValueError if no engine has this name.
    """
    with _lock:
        for engine in _registered:
            if engine.name == name:
                _registered.remove(engine)
                return
    raise ValueError(f"no engine {name!r} was registered")


def registered() -> tuple[Engine, ...]:
    """All registered engines: objects that run whole collectives.

    Raises TransportUnavailable if the engine of an installed package cannot be loaded.
    """
    with _lock:
        ours = tuple(_registered)
    names = {engine.name for engine in ours}
    return (*ours, *(engine for engine in _installed() if engine.name not in names))


def check(engine: Any) -> None:
    """Raises TypeError if `engine` lacks a name or a method of the class `Engine`, ValueError for an invalid name."""
    name = getattr(engine, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"an engine has a name, but {engine!r} has none")
    missing = [method for method in _METHODS if not callable(getattr(engine, method, None))]
    if missing:
        raise TypeError(f"engine {name!r} has no method {', '.join(missing)}")
    if not _NAME.fullmatch(name) or name == NATIVE:
        raise ValueError(f"{name!r} cannot be the name of an engine: lower case letters, digits, '_' and '-'")


@lru_cache(maxsize=1)
def _installed() -> tuple[Engine, ...]:
    if not _may_have_any():
        return ()
    from importlib.metadata import entry_points

    found = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            engine = point.load()()
            check(engine)
        except Exception as error:  # a package's import may raise any error
            raise TransportUnavailable(f"engine {point.name!r} ({point.value}) cannot be loaded: {error!r}") from error
        found.append(engine)
    return tuple(found)


def _may_have_any() -> bool:
    """Whether an installed package may have an engine's entry point: a quick check that reads no other metadata."""
    import os
    import sys

    for folder in sys.path:
        try:
            entries = os.scandir(folder or ".")
        except OSError:
            continue
        with entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")):
                    try:
                        with open(os.path.join(entry.path, "entry_points.txt"), encoding="utf-8") as file:
                            if ENTRY_POINTS in file.read():
                                return True
                    except OSError:
                        continue
    return False
