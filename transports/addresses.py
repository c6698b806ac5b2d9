"""The addresses of this machine's network interfaces, and the order in which to try the addresses of a peer.

Invariant: this module resolves no host names. An address is numeric, and comes from an interface that is up or from
the record that a peer has published. Loopback is used only between ranks of one machine and network namespace.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

IP: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_MOST_LINK_SCOPES = 4  # interfaces on which a peer's link-local address is tried


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One IP address of one network interface of this machine.

    `index` is the interface's number in the kernel (ifindex). `ip` has no IPv6 scope id; for a link-local address,
    `index` is the scope id.
    """

    interface: str
    index: int
    ip: IP
    prefix: int
    running: bool
    loopback: bool

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return ipaddress.ip_network((self.ip, self.prefix), strict=False)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The IP address and TCP port at which a peer listens.

    `text()` returns the form in which ranks publish an endpoint. `native()` returns the form that the C++ code needs.
    """

    ip: IP
    port: int
    interface: str = ""  # the publisher's name of its interface, for link-local addresses only
    scope: int = 0  # this machine's interface index, for link-local addresses only

    def text(self) -> str:
        return f"{self.ip}{'%' + self.interface if self.interface else ''} {self.port}"

    def native(self) -> str:
        return f"{self.ip}{f'%{self.scope}' if self.scope else ''} {self.port}"

    @staticmethod
    def parse(text: str) -> Endpoint:
        """Return the endpoint that a peer has published as `text`, the result of `Endpoint.text`.

        Raises: ValueError if `text` is malformed.
        """
        address, _, port = text.partition(" ")
        host, _, interface = address.partition("%")
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or len(interface) > 15:
            raise ValueError(f"not an address: {text[:100]!r}")
        ip = ipaddress.ip_address(host)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped  # otherwise ::ffff:127.0.0.1 would not count as loopback
        if ip.is_unspecified or ip.is_multicast:
            raise ValueError(f"not the address of one machine: {text[:100]!r}")
        return Endpoint(ip, int(port), interface)


def interface_addresses() -> list[InterfaceAddress]:
    """Return all IPv4 and IPv6 addresses of all network interfaces that are up, in the kernel's order.

    Raises: OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"getifaddrs: {os.strerror(code)}")
    try:
        indexes = {name: index for index, name in socket.if_nameindex()}
        found = []
        node = first
        while node:
            entry = node.contents
            address = _read(entry, indexes)
            if address is not None:
                found.append(address)
            node = entry.next
        return found
    finally:
        libc.freeifaddrs(first)


def choose(addresses: Sequence[InterfaceAddress], interface: str | None) -> list[InterfaceAddress]:
    """Select the addresses that this rank publishes to its peers.

    `addresses` are all addresses of this machine. `interface` is the name or address of a network interface. If it is
    given, only the addresses of that interface are selected. Otherwise the addresses of all interfaces that are up are
    selected, except loopback. A link-local address is selected only if its interface has no other address.

    Raises: ValueError, with a list of the interfaces, if `interface` does not exist on this machine.
    """
    if interface:
        wanted = [a for a in addresses if a.interface == interface] or _having(addresses, interface)
        if not wanted:
            known = sorted({f"{a.interface} ({a.ip})" for a in addresses})
            raise ValueError(f"no interface that is up has the name or address {interface!r}; there are {known}")
    else:
        wanted = [a for a in addresses if a.running and not a.loopback]
    routable = {a.interface for a in wanted if not a.ip.is_link_local}
    return [a for a in wanted if not a.ip.is_link_local or a.interface not in routable]


def candidates(
    theirs: Iterable[Endpoint],
    mine: Sequence[InterfaceAddress],
    same_network: bool,
    interface: str | None,
    source_of: Callable[[Endpoint], IP | None] | None = None,
) -> list[Endpoint]:
    """Return the endpoints in `theirs`, all of one peer, in the order in which this rank should try to connect to them.

    `mine` are all addresses of this machine. `same_network` tells whether the peer is in the same network namespace of
    the same machine. For such a peer, loopback endpoints come first, and link-local endpoints are removed.

    For any other peer, endpoints in a subnet of this machine come first. If `interface` is given, endpoints that this
    machine reaches through that interface come before all others. Loopback endpoints and endpoints without a route are
    removed. An endpoint is also removed if this machine itself has its address: virtual bridges have the same address
    on many hosts.

    `source_of` replaces the function `source_address` in tests.
    """
    if same_network:
        return sorted((e for e in theirs if not e.ip.is_link_local), key=lambda e: not e.ip.is_loopback)
    own = {a.ip for a in mine}
    ranked: list[tuple[int, int, Endpoint]] = []
    preferred = {a.ip for a in choose(mine, interface)} if interface else set()
    for position, endpoint in enumerate(theirs):
        if endpoint.ip.is_loopback or endpoint.ip in own:
            continue
        for scoped in _scoped(endpoint, mine, interface):
            source = (source_of or source_address)(scoped)
            if source is None or source.is_loopback:
                continue
            shared = any(not a.loopback and scoped.ip in a.network for a in mine)
            ranked.append((2 * (bool(preferred) and source not in preferred) + (not shared), position, scoped))
    return [endpoint for _, _, endpoint in sorted(ranked, key=lambda r: r[:2])]


def source_address(to: Endpoint) -> IP | None:
    """Return the local IP address from which a connection to `to` would come, or None if there is no route.

    The kernel's routing table decides; nothing is sent.
    """
    family = socket.AF_INET if to.ip.version == 4 else socket.AF_INET6
    where = (str(to.ip), to.port) if to.ip.version == 4 else (str(to.ip), to.port, 0, to.scope)
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect(where)  # for a datagram socket this only looks up the route
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
            raise
        return None


def _having(addresses: Sequence[InterfaceAddress], text: str) -> list[InterfaceAddress]:
    host, _, interface = text.partition("%")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return []
    return [a for a in addresses if a.ip == ip and interface in ("", a.interface)]


def _scoped(endpoint: Endpoint, mine: Sequence[InterfaceAddress], interface: str | None) -> list[Endpoint]:
    """The endpoints to try for `endpoint`: one for each local interface if it is IPv6 link-local, else itself only.

    `interface`: the only interface to use, if not None. An interface with the same name as the publisher's comes first.
    """
    if endpoint.ip.version == 4 or not endpoint.ip.is_link_local:
        return [endpoint]
    links = {a.index: a.interface for a in mine if a.ip.version == 6 and a.ip.is_link_local and a.running}
    if interface:
        links = {a.index: a.interface for a in choose(mine, interface) if a.index in links}
    order = sorted(links, key=lambda index: (links[index] != endpoint.interface, index))[:_MOST_LINK_SCOPES]
    return [Endpoint(endpoint.ip, endpoint.port, endpoint.interface, index) for index in order]


class _SockAddr(ctypes.Structure):
    _fields_ = (("family", ctypes.c_uint16), ("data", ctypes.c_uint8 * 26))


class _IfAddrs(ctypes.Structure):
    pass


_IfAddrs._fields_ = (  # struct ifaddrs of <ifaddrs.h>, which is the same on every Linux
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SockAddr)),
    ("netmask", ctypes.POINTER(_SockAddr)),
    ("broadcast", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)


def _read(entry: _IfAddrs, indexes: dict[str, int]) -> InterfaceAddress | None:
    flags = int(entry.flags)
    if not flags & _IFF_UP or not entry.address:
        return None
    ip = _ip(entry.address)
    mask = _ip(entry.netmask, entry.address) if entry.netmask else None
    name = os.fsdecode(entry.name)
    if ip is None or name.partition(":")[0] not in indexes:
        return None
    prefix = int(mask).bit_count() if mask is not None else ip.max_prefixlen
    return InterfaceAddress(
        interface=name,
        index=indexes[name.partition(":")[0]],  # eth0:1 is an alias of eth0
        ip=ip,
        prefix=prefix,
        running=bool(flags & _IFF_RUNNING),
        loopback=bool(flags & _IFF_LOOPBACK),
    )


def _ip(pointer: ctypes._Pointer[_SockAddr], like: ctypes._Pointer[_SockAddr] | None = None) -> IP | None:
    """The IP address in the sockaddr at `pointer`; None for other families.

    The family is read from `like`, if given, because the kernel may omit the family in netmasks.
    """
    family = (like or pointer).contents.family
    start = ctypes.addressof(pointer.contents)
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(ctypes.string_at(start + 4, 4))
    if family == socket.AF_INET6:
        return ipaddress.IPv6Address(ctypes.string_at(start + 8, 16))
    return None
