"""RDMA through verbs: InfiniBand, and Ethernet by RoCE. Ranks meet over TCP, and move data over queue pairs.

Invariant: the engine alone uses devices; it loads libibverbs when it is first needed, so that everything else works
without it. This module asks the engine for ports, and publishes of which kind they are.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.native import _engine
from collectives.native.errors import TransportUnavailable
from collectives.transports.addresses import interface_addresses
from collectives.transports.tcp import TcpTransport, listener
from collectives.transports.transport import Listener, Place, Scope, left_out

if TYPE_CHECKING:
    from collectives.native._engine import Group

_PORTS = "ports "  # begins the address that names the kinds of a rank's ports, and their networks
_KNOWN_LAYERS = ("Ethernet", "InfiniBand")
_MOST_NETWORKS = 4  # that a rank names
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
        ours, others = ({layer for layer, _ in _parts(place)[0]} for place in (mine, theirs))
        if not ours & others:
            return f"{mine} has RDMA ports of {_named(ours)}, and {theirs} of {_named(others)}"
        return self._tcp.reaches(_over_tcp(mine), _over_tcp(theirs))

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        self._tcp.route(group, _over_tcp(mine), _over_tcp(theirs), scope, timeout, "verbs")


class VerbsBetweenHosts(VerbsTransport):
    """The transport verbs as `transport="auto"` uses it: between hosts, where no router can be between the ports."""

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
        for place in (mine, theirs):
            if len(_parts(place)[0]) > 1:
                return f"{place} has RDMA ports in several networks: name one by COLLECTIVES_VERBS_DEVICE"
        if _parts(mine)[0] != _parts(theirs)[0]:
            return f"the RDMA ports of {mine} and {theirs} are in different networks"
        return None


class _VerbsListener:
    """A TCP listener, which also says of which kinds this rank's ports are, and in which networks."""

    def __init__(self, tcp: Listener) -> None:
        self._tcp = tcp
        ports = sorted({_kind(port) for port in _usable() if port["layer"] in _KNOWN_LAYERS})[:_MOST_NETWORKS]
        self.addresses: Sequence[str] = (_PORTS + " ".join(f"{layer}={net}" for layer, net in ports), *tcp.addresses)

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


def _kind(port: dict[str, Any]) -> tuple[str, str]:
    """The port's layer, and the network that its address belongs to: two ports of one network reach each other."""
    address = ipaddress.IPv6Address(port["address"])
    if port["layer"] == "InfiniBand":
        return port["layer"], f"{int(address) >> 64:x}"  # the subnet's prefix
    ip = address.ipv4_mapped or address
    found = next((str(a.network) for a in interface_addresses() if a.ip == ip and not ip.is_link_local), str(ip))
    return port["layer"], f"{found}:{port['address_kind'].replace(' ', '')}"


def _parts(place: Place) -> tuple[set[tuple[str, str]], tuple[str, ...]]:
    """The kinds of a rank's ports, with their networks, and its addresses for TCP.

    Raises ValueError for what no rank publishes.
    """
    first, *addresses = place.addresses
    ports = {(layer, net) for layer, _, net in (text.partition("=") for text in first.removeprefix(_PORTS).split())}
    if not first.startswith(_PORTS) or not all(layer in _KNOWN_LAYERS and net for layer, net in ports):
        raise ValueError(f"not what a rank publishes of its RDMA ports: {first[:100]!r}")
    return ports, tuple(addresses)


def _over_tcp(place: Place) -> Place:
    return Place(place.rank, place.identity, _parts(place)[1], place.ended)


def _named(layers: set[str]) -> str:
    return " and ".join(sorted(layers)) or "no known kind"
