"""The version of the library."""

from __future__ import annotations


def library_version() -> str:
    """Returns the version of this library, or "0+unknown" if its C++ engine is missing, or was not built by pip.

    The engine knows the version because reading it from the installed package's metadata takes 10 ms.
    """
    try:
        from collectives.native import _engine
    except ImportError:
        return "0+unknown"
    return _engine.VERSION or "0+unknown"
