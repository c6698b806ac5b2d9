"""The default communicator of gradient hooks: the only open communicator that this process made by `init`.

Invariant: nothing is guessed. If no such communicator is open, or several are, there is no default.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Final

from collectives.core.communicator import Communicator

_lock: Final = threading.Lock()
_made: Final[list[weakref.ref[Communicator]]] = []
_places: Final[weakref.WeakKeyDictionary[Communicator, str]] = weakref.WeakKeyDictionary()  # file:line


def register(comm: Communicator) -> None:
    """Record that `collectives.init` made `comm`, and which line of the user's code called `init`."""
    place = _caller()
    with _lock:
        _made[:] = [reference for reference in _made if _is_open(reference())]
        _made.append(weakref.ref(comm))
        _places[comm] = place


def forget(comm: Communicator) -> None:
    """Exclude `comm` from the choice of the default communicator, because only the code that made it may use it."""
    with _lock:
        _made[:] = [reference for reference in _made if reference() is not comm]


def opened() -> list[Communicator]:
    """The open communicators that `collectives.init` made in this process, in the order of their creation."""
    with _lock:
        return [made for reference in _made if (made := reference()) is not None and not made.closed]


def default(comm: Communicator | None = None) -> Communicator:
    """Returns `comm`; if it is None, the only open communicator that `collectives.init` made in this process.

    Raises RuntimeError if `comm` is None and no such communicator is open, or several are. Raises TypeError if `comm`
    is not a communicator.
    """
    if comm is not None:
        if not isinstance(comm, Communicator):
            raise TypeError(f"comm must be a Communicator, not {type(comm).__name__}")
        return comm
    found = opened()
    if len(found) == 1:
        return found[0]
    if not found:
        raise RuntimeError("no communicator is open in this process: call collectives.init() first, or give comm=")
    listed = ", ".join(f"{made.name!r} made at {_places.get(made, 'an unknown place')}" for made in found)
    raise RuntimeError(
        f"{len(found)} communicators are open in this process ({listed}): close the one that is over by its close(), "
        "or pass the one to use as comm="
    )


def _caller() -> str:
    """The line of code that called this library."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "collectives":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_open(comm: Communicator | None) -> bool:
    return comm is not None and not comm.closed
