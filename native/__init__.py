"""The lowest layer: the C++ engine (`collectives.native._engine`) and the error classes (`collectives.native.errors`).

Invariant: `collectives.native.errors` imports nothing of the library. If the engine was not built, importing it raises
an ImportError that explains how to build it.
"""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def __getattr__(name: str) -> "ModuleType":
    """The module `_engine`, which is loaded at the first `from collectives.native import _engine`."""
    if name != "_engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("collectives.native._engine")
    except ModuleNotFoundError as error:
        if error.name != "collectives.native._engine":
            raise
        from pathlib import Path  # needed only for this message

        raise ImportError(_how_to_build(Path(__file__).resolve().parent), name=error.name, path=__file__) from None


def _how_to_build(folder: "Path") -> str:
    others = ", ".join(sorted(file.name for file in folder.glob("_engine.*.so")))
    built = f"built for another Python only ({others})" if others else "not built"
    if (folder / "src").is_dir():
        checkout = folder.parent
        return (
            f"the C++ engine is {built} in the source folder {checkout}, which Python finds first. Build it there "
            f"with `make dev` (or `pip install -e {checkout}`), or run from another folder to use what is installed."
        )
    return f"the C++ engine in {folder} is {built}: install the package again with this Python, {sys.executable}"
