"""Checks whether matplotlib, which draws the plots, is installed.

Invariant: matplotlib is optional. Commands check for it before they compute what they would draw.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

FORMATS: Final = (".svg", ".png", ".pdf")
MISSING: Final = "drawing needs matplotlib: pip install matplotlib"


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        return find_spec("matplotlib") is not None
    except ValueError:  # another module has its name, or hides it
        return False


def require() -> None:
    """Raises ImportError if matplotlib is not installed. The message says how to install it."""
    if not available():
        raise ImportError(MISSING)
