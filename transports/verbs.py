"""RDMA through verbs: InfiniBand, and Ethernet by RoCE. Ranks meet over TCP, and move data over queue pairs.

Invariant: the engine alone uses devices; it loads libibverbs when it is first needed, so that everything else works
without it. This module asks the engine for ports, and publishes of which kind they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.native import _engine
from collectives.native.errors import TransportUnavailable
from collectives.transports import rdma_networks
from collectives.transports.addresses import interface_addresses
from collectives.transports.rdma_networks import Networks
from collectives.transports.tcp import TcpTransport, listener
from collectives.transports.transport import Listener, Place, Scope, left_out

if TYPE_CHECKING:
    from collectives.native._engine import Group

_DEVICES = Path("/sys/class/infiniband")


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
        ours, others = _networks(mine).layers, _networks(theirs).layers
        if not ours & others:
            return f"{mine} has RDMA ports of {_named(ours)}, and {theirs} of {_named(others)}"
        return self._tcp.reaches(_over_tcp(mine), _over_tcp(theirs))

    def choose_ports(self, group: Group, mine: Place, theirs: Sequence[Place]) -> None:
        ports, addresses = _usable(), interface_addresses()
        ours = _networks(mine)
        for place in theirs:
            others = _networks(place)
            network = rdma_networks.common(ours, others, mine.rank + place.rank)
            port = rdma_networks.port_in(network, ours.layers & others.layers, ports, addresses, mine.rank)
            if port is None:
                raise TransportUnavailable(f"{mine} has lost the RDMA port by which it reaches {place}")
            name = f"{port['device']}:{port['port']}:{port['address_index']}"
            group.use_port(place.rank, self.scheme, name)

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        self._tcp.route(group, _over_tcp(mine), _over_tcp(theirs), scope, timeout, "verbs")


class VerbsBetweenHosts(VerbsTransport):
    """RDMA verbs as `transport="auto"` uses it: only between hosts, and with no router between the ports."""

    def available(self) -> str | None:
        # Most machines have no RDMA, and need not load a library to find out.
        if not any(_DEVICES.glob("*")):
            return f"this machine has no RDMA device ({_DEVICES} is empty)"
        return super().available()

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        problem = super().reaches(mine, theirs)
        if problem is not None:
            return problem
        if mine.identity.same_machine(theirs.identity) and mine.identity.same_network(theirs.identity):
            return f"{mine} and {theirs} are on one host, and RDMA is taken between hosts only unless it is asked for"
        if rdma_networks.common(_networks(mine), _networks(theirs), 0) is None:
            return f"the RDMA ports of {mine} and {theirs} are in different networks"
        return None


class _VerbsListener:
    """A TCP listener, which also says in which networks this rank's ports are."""

    def __init__(self, tcp: Listener) -> None:
        self._tcp = tcp
        networks = rdma_networks.of_ports(_usable(), interface_addresses())
        if not networks.all:
            tcp.close()
            raise TransportUnavailable("no RDMA port of this machine is of Ethernet or InfiniBand")
        self.addresses: Sequence[str] = (*networks.published(), *tcp.addresses)

    def attach(self, group: Group) -> None:
        self._tcp.attach(group)

    def split(self) -> Listener:
        return self

    def close(self) -> None:
        self._tcp.close()


def ports() -> list[dict[str, Any]]:
    """Return all RDMA ports of this machine, as `native._engine.network_ports` does. Raises TransportUnavailable."""
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


def _networks(place: Place) -> Networks:
    """Raises ValueError for what no rank publishes."""
    return rdma_networks.parse(place.addresses)[0]


def _over_tcp(place: Place) -> Place:
    return Place(place.rank, place.identity, rdma_networks.parse(place.addresses)[1], place.ended)


def _named(layers: frozenset[str]) -> str:
    return " and ".join(sorted(layers)) or "no known kind"
