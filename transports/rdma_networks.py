"""The networks of RDMA ports: what a rank publishes of them, and which one connects two ranks.

Invariant: both ranks of a pair choose the same network, since they decide from what both have published. Each then
chooses its own port in that network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from collectives.transports.addresses import InterfaceAddress

_NEAR, _FAR = "near ", "far "  # what a rank publishes begins with one of them
_KNOWN_LAYERS = ("Ethernet", "InfiniBand")
_MOST = 16  # networks that a rank publishes


@dataclass(frozen=True, slots=True, order=True)
class Network:
    """A network that ports of RDMA devices belong to: two ports of one network reach each other.

    `layer` is "Ethernet" or "InfiniBand". `name` is the IP network and the kind of address, such as
    "10.77.0.0/24:RoCEv2". For InfiniBand, `name` is the prefix of the subnet.
    """

    layer: str
    name: str


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks of one rank's ports.

    `near`: the networks of ports near the rank's processor cores. `far`: the networks that only other ports have.
    """

    near: frozenset[Network]
    far: frozenset[Network]

    @property
    def all(self) -> frozenset[Network]:
        return self.near | self.far

    @property
    def layers(self) -> frozenset[str]:
        return frozenset(network.layer for network in self.all)

    def published(self) -> list[str]:
        """Return texts from which peers learn this rank's networks, one text for each network."""
        order = [(_NEAR, n) for n in sorted(self.near)] + [(_FAR, n) for n in sorted(self.far)]
        return [f"{how}{network.layer}={network.name}" for how, network in order[:_MOST]]


def of_ports(ports: Iterable[dict[str, Any]], addresses: Sequence[InterfaceAddress]) -> Networks:
    """Return the networks of `ports`, which are dicts as `native._engine.network_ports` returns them.

    `addresses` are the IP addresses of this machine's network interfaces.
    """
    near, all_networks = set(), set()
    for port in ports:
        if port["layer"] in _KNOWN_LAYERS:
            network = network_of(port, addresses)
            all_networks.add(network)
            if port["near"]:
                near.add(network)
    return Networks(frozenset(near), frozenset(all_networks - near))


def network_of(port: dict[str, Any], addresses: Sequence[InterfaceAddress]) -> Network:
    """Return the network of one port. The arguments are as for `of_ports`."""
    address = ipaddress.IPv6Address(port["address"])
    if port["layer"] == "InfiniBand":
        return Network(port["layer"], f"{int(address) >> 64:x}")
    ip = address.ipv4_mapped or address
    found = next((str(a.network) for a in addresses if a.ip == ip and not ip.is_link_local), str(ip))
    return Network(port["layer"], f"{found}:{port['address_kind'].replace(' ', '')}")


def parse(texts: Sequence[str]) -> tuple[Networks, tuple[str, ...]]:
    """Decode the networks in `texts`, which a rank has published; return them, and the texts that follow them.

    Raises ValueError for texts that no rank publishes.
    """
    near: set[Network] = set()
    far: set[Network] = set()
    number = 0
    for text in texts:
        how = next((how for how in (_NEAR, _FAR) if text.startswith(how)), None)
        if how is None:
            break
        layer, _, name = text.removeprefix(how).partition("=")
        if layer not in _KNOWN_LAYERS or not name:
            raise ValueError(f"not what a rank publishes of its RDMA ports: {text[:100]!r}")
        (near if how == _NEAR else far).add(Network(layer, name))
        number += 1
    if not 0 < number <= _MOST:
        raise ValueError(f"not what a rank publishes of its RDMA ports: {[text[:100] for text in texts[:1]]}")
    return Networks(frozenset(near), frozenset(far)), tuple(texts[number:])


def common(first: Networks, second: Networks, turn: int) -> Network | None:
    """Return the network over which two ranks connect, or None if the ranks have no network in common.

    A network that is near both ranks comes before a network that is near only one rank. `turn` divides pairs of ranks
    among networks that are equally good. The result is the same if `first` and `second` are exchanged.
    """
    shared = sorted(first.all & second.all)
    if not shared:
        return None

    def distance(network: Network) -> int:
        return (network in first.far) + (network in second.far)

    least = min(map(distance, shared))
    best = [network for network in shared if distance(network) == least]
    return best[turn % len(best)]


def port_in(
    network: Network | None,
    layers: Iterable[str],
    ports: Sequence[dict[str, Any]],
    addresses: Sequence[InterfaceAddress],
    rank: int,
) -> dict[str, Any] | None:
    """Return the port of `ports` through which rank `rank` connects to a peer; None if no port fits.

    The port is in `network`. If `network` is None, it is any port of the first of `layers`, in alphabetical order.
    Ports near the rank's cores come first; ranks take turns among ports that are equally near.
    """
    if network is None:
        layer = min(layers, default="")
        usable = [port for port in ports if port["layer"] == layer]
    else:
        usable = [port for port in ports if network_of(port, addresses) == network]
    usable = [port for port in usable if port["near"]] or usable
    return usable[rank % len(usable)] if usable else None
