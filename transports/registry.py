"""The registry of transports, by name (scheme): built-in transports, and transports of installed packages.

Libraries that run whole collectives on device memory, such as NCCL, are registered here, too.

Invariant: each name gives either the transport of that name or an error with the reason, never another transport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectives.native.errors import TransportUnavailable
from collectives.native.spelling import hint
from collectives.transports.inproc import InprocTransport
from collectives.transports.leader import Leader
from collectives.transports.library import Library
from collectives.transports.nccl import Nccl
from collectives.transports.shm import ShmTransport
from collectives.transports.tcp import TcpTransport
from collectives.transports.transport import Transport
from collectives.transports.verbs import VerbsBetweenHosts, VerbsTransport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINTS = "pycollectives.transports"

_BUILT_IN: dict[str, Transport] = {
    t.scheme: t for t in (InprocTransport(), ShmTransport(), TcpTransport(), VerbsTransport())
}
_loaded: dict[str, Transport] = {}  # transports of other packages
_LIBRARIES: dict[str, Library] = {library.scheme: library for library in (Nccl(), Leader())}

# What `transport="auto"` tries for a pair of ranks, in this order.
_AUTO: dict[str, Transport] = {
    t.scheme: t for t in (InprocTransport(), ShmTransport(), VerbsBetweenHosts(), TcpTransport())
}
AUTO = tuple(_AUTO)
LIBRARIES = tuple(_LIBRARIES)  # the names of libraries for device memory; links carry what ranks agree on


def _installed(name: str | None = None) -> EntryPoints:
    from importlib.metadata import entry_points  # takes 10 ms, and few programs have such packages

    return entry_points(group=ENTRY_POINTS) if name is None else entry_points(group=ENTRY_POINTS, name=name)


def schemes() -> tuple[str, ...]:
    """Every name that `check` accepts."""
    return tuple(dict.fromkeys([*_BUILT_IN, *_LIBRARIES, *sorted(p.name for p in _installed())]))


def library(scheme: str) -> Library:
    """The library with the name `scheme`, one of `LIBRARIES`."""
    return _LIBRARIES[scheme]


def check(scheme: str) -> None:
    """Raise an error unless `scheme` is the name of a transport or of a library such as NCCL.

    Raises: ValueError for an unknown name; TransportUnavailable for a transport of another package that cannot be
    loaded.
    """
    if scheme not in _LIBRARIES:
        transport(scheme)


def transport(scheme: str) -> Transport:
    """Return the transport with the name `scheme`.

    Raises: ValueError, with a list of the known names, for an unknown name; TransportUnavailable for a transport of
    another package that cannot be loaded.
    """
    known = _BUILT_IN.get(scheme) or _loaded.get(scheme)
    if known is not None:
        return known
    for point in _installed(scheme):
        try:
            found: Transport = point.load()()
        except Exception as error:  # a package's import may raise any error
            raise TransportUnavailable(f"transport {scheme!r} ({point.value}) cannot be loaded: {error!r}") from error
        if found.scheme != scheme:
            raise TransportUnavailable(f"transport {scheme!r} ({point.value}) calls itself {found.scheme!r}")
        _loaded[scheme] = found
        return found
    names = ("auto", *schemes())
    raise ValueError(f"unknown transport {scheme!r}{hint(scheme, names)}; there are {', '.join(names)}")


def automatic(scheme: str) -> Transport:
    """Return the transport `scheme`, one of `AUTO`, with the conditions that `transport="auto"` sets for its use."""
    return _AUTO[scheme]


def available(scheme: str) -> str | None:
    """Return None if the transport or library `scheme` works on this machine, or the reason why it does not, as text.

    Raises: ValueError for an unknown name.
    """
    if scheme in _LIBRARIES:
        return _LIBRARIES[scheme].available()
    try:
        return transport(scheme).available()
    except TransportUnavailable as error:
        return str(error)
