"""Checks that the packages that belong to this distribution are the ones that Python finds.

Invariant: nothing is imported here, so this works, and comes first, when one of them is something else. Their
names are common words; a folder `native` beside the user's script, or a file `bench.py`, hides ours.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def require(*names: str) -> None:
    """Raise ImportError if one of the top-level packages `names` is not the one installed with this one."""
    home = Path(__file__).resolve().parents[1]
    for name in names:
        found = _location(name)
        if found is None:
            raise ImportError(
                f"{home} lacks the package {name!r}, which belongs to pycollectives: reinstall it", name=name
            )
        if found.parent != home:
            raise ImportError(
                f"`import {name}` finds {found}, but pycollectives needs its own package {name!r} in {home}. "
                f"Rename {found.name!r} there, or take {found.parent} off PYTHONPATH and sys.path (Python puts the "
                "folder of the script it runs, or the current folder, first).",
                name=name,
                path=str(found),
            )


def _location(name: str) -> Path | None:
    """The folder, or single file, that `import name` takes."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is None:  # a folder without code of its own
        folders = list(spec.submodule_search_locations or ())
        return Path(folders[0]).resolve() if folders else None
    # An editable install has two folders, sources and compiled modules: the package is where its code is.
    origin = Path(spec.origin).resolve()
    return origin.parent if origin.stem == "__init__" else origin
