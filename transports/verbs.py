"""RDMA through verbs: InfiniBand, and Ethernet by RoCE. Ranks meet over TCP, and move data over queue pairs.

Invariant: the engine alone uses devices; it loads libibverbs when it is first needed, so that everything else works
without it. This module asks the engine for ports, and publishes of which kind they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collectives.native import _engine
from collectives.native.errors import TransportUnavailable
from collectives.transports.tcp import TcpTransport, listener
from collectives.transports.transport import Listener, Place, Scope, left_out

if TYPE_CHECKING:
    from collectives.native._engine import Group

_LAYERS = "layers "  # begins the address that names the kinds of a rank's ports
_KNOWN_LAYERS = ("Ethernet", "InfiniBand")


class VerbsTransport:
    def __init__(self) -> None:
        self._tcp = TcpTransport()

    @property
    def scheme(self) -> str:
        return "verbs"

    def available(self) -> str | None:
        return left_out("verbs") or self._tcp.available() or _why_unusable() or _engine.why_no_room("verbs", 2)

    def listen(self, scope: Scope) -> Listener:
        reason = self.available() or _engine.why_no_room("verbs", scope.ranks, scope.segment)
        if reason:
            raise TransportUnavailable(reason)
        return _VerbsListener(listener("verbs", scope))

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        for place in (mine, theirs):
            if not place.addresses:
                return f"{place} does not offer RDMA verbs"
        ours, others = (_parts(place)[0] for place in (mine, theirs))
        if not ours & others:
            return f"{mine} has RDMA ports of {_named(ours)}, and {theirs} of {_named(others)}"
        return self._tcp.reaches(_over_tcp(mine), _over_tcp(theirs))

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        self._tcp.route(group, _over_tcp(mine), _over_tcp(theirs), scope, timeout, "verbs")


class _VerbsListener:
    """A TCP listener, which also says of which kinds this rank's ports are."""

    def __init__(self, tcp: Listener) -> None:
        self._tcp = tcp
        layers = {port["layer"] for port in _usable()} & set(_KNOWN_LAYERS)
        self.addresses: Sequence[str] = (_LAYERS + " ".join(sorted(layers)), *tcp.addresses)

    def attach(self, group: Group) -> None:
        self._tcp.attach(group)

    def split(self) -> Listener:
        return self

    def close(self) -> None:
        self._tcp.close()


def ports() -> list[dict[str, Any]]:
    """Every RDMA port of this machine, as `native._engine.network_ports` describes it. Raises TransportUnavailable."""
    return _engine.network_ports("verbs")


def _usable() -> list[dict[str, Any]]:
    return [port for port in ports() if not port["problem"] and not port["left_out"]]


def _why_unusable() -> str | None:
    """The reason why no port can be used, with what is wrong with each; None if one can."""
    try:
        found = ports()
    except TransportUnavailable as error:
        return str(error)
    if not found:
        return "this machine has no RDMA device: `ibv_devices` lists none"
    chosen = [port for port in found if not port["left_out"]]
    if not chosen:
        names = ", ".join(port["device"] for port in found)
        return (
            f"COLLECTIVES_VERBS_DEVICE is {os.environ.get('COLLECTIVES_VERBS_DEVICE')!r}, and this machine has {names}"
        )
    if any(not port["problem"] for port in chosen):
        return None
    return "; ".join(f"{port['device']} port {port['port']}: {port['problem']}" for port in chosen)


def _parts(place: Place) -> tuple[set[str], tuple[str, ...]]:
    """The kinds of a rank's ports, and its addresses for TCP. Raises ValueError for what no rank publishes."""
    first, *addresses = place.addresses
    layers = set(first.removeprefix(_LAYERS).split())
    if not first.startswith(_LAYERS) or not layers <= set(_KNOWN_LAYERS):
        raise ValueError(f"not what a rank publishes of its RDMA ports: {first[:100]!r}")
    return layers, tuple(addresses)


def _over_tcp(place: Place) -> Place:
    return Place(place.rank, place.identity, _parts(place)[1], place.ended)


def _named(layers: set[str]) -> str:
    return " and ".join(sorted(layers)) or "no known kind"
