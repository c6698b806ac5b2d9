"""The version of the library that is installed.

Invariant: the modules that read the metadata of packages are imported only when the version is needed.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1)
def library_version() -> str:
    """Returns the installed version of this library, or "0+unknown" if it runs from its source without installation."""
    from importlib.metadata import PackageNotFoundError, version  # takes 10 ms

    try:
        return version("pycollectives")
    except PackageNotFoundError:
        return "0+unknown"
