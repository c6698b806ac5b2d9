"""Loads plug-ins, and tells the folder of their headers. A plug-in is a shared object that adds a transport's links.

Links are the engine's connections between ranks. Invariant: before any code of a plug-in runs, its file is checked to
be built for this version of the C++ interface.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from pathlib import Path
from typing import Final

from collectives.native import _engine
from collectives.native.errors import TransportUnavailable

_MARK: Final = re.compile(rb"pycollectives interface (\w+)\0")  # COLLECTIVES_PLUGIN in base/export.hpp
_loading = threading.Lock()
_loaded: dict[Path, ctypes.CDLL] = {}


def get_include() -> str:
    """Return the folder of the C++ headers for plug-ins, to pass to the compiler with `-I`.

    A plug-in is a shared object that adds a transport. It includes headers such as `<collectives/link/link.hpp>`. It
    works with every installation of this library that has the same version of the C++ interface.
    """
    return str(_folder() / "include")


def load(path: str | os.PathLike[str], transport: str) -> ctypes.CDLL:
    """Load the shared object `path`, a plug-in that adds the transport `transport` to the C++ engine.

    Return the plug-in as a `ctypes.CDLL`, through which its functions can be called. A second call with the same file
    returns the same object. The call makes the engine's exported C++ symbols visible to all shared objects, because the
    plug-in needs them.

    Raises: TransportUnavailable if the file is missing, cannot be loaded, or is not a plug-in for this version of the
    C++ interface. Also raises TransportUnavailable if it does not register `transport`.
    """
    file = Path(path).resolve()
    with _loading:
        if file in _loaded:
            return _loaded[file]
        _check_version(file)
        if transport in _engine.transports():
            raise TransportUnavailable(f"{file} cannot be loaded: there is a transport {transport!r} already")
        try:
            ctypes.CDLL(str(_engine_file()), mode=os.RTLD_NOLOAD | os.RTLD_NOW | os.RTLD_GLOBAL)
            found = ctypes.CDLL(str(file), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise TransportUnavailable(f"{file} cannot be loaded: {error}") from error
        refused = _engine.refused_transports()
        if refused:
            raise TransportUnavailable(f"{file} cannot be used: {'; '.join(refused)}")
        if transport not in _engine.transports():
            raise TransportUnavailable(f"{file} registers no transport {transport!r}")
        _loaded[file] = found
        return found


def _check_version(file: Path) -> None:
    try:
        found = _MARK.search(file.read_bytes())
    except OSError as error:
        raise TransportUnavailable(f"{file} cannot be read: {error}") from error
    if found is None:
        raise TransportUnavailable(f"{file} is no plug-in of this library: COLLECTIVES_PLUGIN is not in it")
    version = found[1].decode()
    if version != _engine.INTERFACE:
        raise TransportUnavailable(
            f"{file} was built for version {version} of the C++ interface; this library has version "
            f"{_engine.INTERFACE}: build it again, with the headers in {get_include()}"
        )


def _engine_file() -> Path:
    assert _engine.__file__ is not None
    return Path(_engine.__file__).resolve()


def _folder() -> Path:
    return _engine_file().parent
