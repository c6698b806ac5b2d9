"""Whether pictures can be drawn here.

Invariant: matplotlib is optional, and is checked for before anything is computed that would only be drawn.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

FORMATS: Final = (".svg", ".png", ".pdf")
MISSING: Final = "drawing needs matplotlib: pip install matplotlib"


def available() -> bool:
    """Whether there is matplotlib."""
    try:
        return find_spec("matplotlib") is not None
    except ValueError:  # another object pretends to be it, or hides it
        return False


def require() -> None:
    """ImportError, with advice what to install, if it is missing."""
    if not available():
        raise ImportError(MISSING)
