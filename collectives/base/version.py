"""The version of this distribution.

Invariant: what reads the metadata of packages is imported only when somebody asks for the version.
"""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1)
def library_version() -> str:
    """As installed; "0+unknown" in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms

    try:
        return version("pycollectives")
    except PackageNotFoundError:
        return "0+unknown"
