"""The TCP transport: connects any two ranks by the addresses of their network interfaces.

Invariant: if the job has no secret, ranks listen on loopback only, unless the user has passed `insecure` to `init`.
Loopback is never used between ranks that are known to be in different network namespaces.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from collectives.native.errors import TransportUnavailable
from collectives.transports.addresses import Endpoint, InterfaceAddress, candidates, choose, interface_addresses
from collectives.transports.transport import Listener, Place, Scope, left_out

if TYPE_CHECKING:
    from collectives.native._engine import Group


_BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn
_MOST_ADDRESSES = 32


class TcpTransport:
    @property
    def scheme(self) -> str:
        return "tcp"

    def available(self) -> str | None:
        reason = left_out("tcp")
        if reason:
            return reason
        try:
            _loopback_socket().close()
        except OSError as error:
            return f"no TCP socket can listen on loopback: {error}"
        return None

    def listen(self, scope: Scope) -> Listener:
        return listener("tcp", scope)

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        elsewhere = not mine.identity.same_network(theirs.identity) and mine.identity.proven(theirs.identity)
        for place in (mine, theirs):
            endpoints = _endpoints(place)
            if not endpoints:
                return f"{place} does not offer TCP"
            if elsewhere and all(e.ip.is_loopback for e in endpoints):
                return (
                    f"{place} listens on loopback only, and the two share no network namespace: between hosts, or "
                    "containers with networks of their own, a job needs a secret (COLLECTIVES_SECRET_FILE, or "
                    "init(secret=...)) and an interface that is up"
                )
        return None

    def route(
        self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float, scheme: str = "tcp"
    ) -> None:
        """Tell the C++ engine, by `group.route`, at which addresses to connect to the peer at `theirs`.

        Opens no connection. `mine` is where this rank can be reached. `scope` names the network interface to use, if
        the user has chosen one. `scheme` is the transport: "tcp", or a transport whose connections begin with a TCP
        connection. `timeout` is unused. Raises: TransportUnavailable if this host has no route to any address of the
        peer.
        """
        same_network = mine.identity.same_network(theirs.identity)
        here = [] if same_network else interface_addresses()
        endpoints = _endpoints(theirs)
        found = candidates(endpoints, here, same_network, scope.interface)
        if not same_network and not mine.identity.proven(theirs.identity):
            # The peer may be on this host, although that is not proven. If another program listens at this address, the
            # handshake fails, because the program does not know the group.
            found += [endpoint for endpoint in endpoints if endpoint.ip.is_loopback]
        if not found:
            own = {address.ip for address in here}
            shared = all(e.ip in own or e.ip.is_loopback for e in endpoints)
            raise TransportUnavailable(
                f"{mine} has no route to any address of {theirs} ({', '.join(theirs.addresses)})"
                + (", all of which this host has itself; the two need a network that both are on. " if shared else "; ")
                + "COLLECTIVES_INTERFACE names the interface to publish"
            )
        group.route(theirs.rank, scheme, [e.native() for e in found], theirs.identity.host)


def listener(scheme: str, scope: Scope) -> Listener:
    """Open a socket that listens for the TCP connections of the transport `scheme`, and return it as a `Listener`.

    `scope` says which hosts may connect. Raises: TransportUnavailable if the socket cannot be opened; ValueError if the
    network interface that `scope` names does not exist.
    """
    try:
        return _TcpListener(scheme, scope)
    except OSError as error:
        raise TransportUnavailable(f"cannot listen for TCP connections: {error}") from error


class _TcpListener:
    """Listens on one socket, or, if the user chose an interface, on one for each of its addresses and for loopback."""

    def __init__(self, scheme: str, scope: Scope) -> None:
        self._scheme = scheme
        self._sockets: list[socket.socket] = []
        self._attached = False
        try:
            self.addresses: Sequence[str] = tuple(e.text() for e in self._open(scope))[:_MOST_ADDRESSES]
        except BaseException:
            self.close()
            raise

    def attach(self, group: Group) -> None:
        if not self._sockets and not self._attached:
            raise ValueError("this listener was closed before")
        if self._attached:
            group.accept(self._scheme)
        self._attached = True
        while self._sockets:
            group.listen(self._scheme, self._sockets.pop().detach())

    def split(self) -> Listener:
        return self

    def close(self) -> None:
        while self._sockets:
            self._sockets.pop().close()

    def _open(self, scope: Scope) -> Iterable[Endpoint]:
        if not scope.network:
            yield self._add(_loopback_socket())
        elif scope.interface is None:
            wildcard = _wildcard_socket()
            self._sockets.append(wildcard)
            port, both = wildcard.getsockname()[1], wildcard.family == socket.AF_INET6
            all_addresses = interface_addresses()
            for address in [*_loopbacks(all_addresses)[:1], *choose(all_addresses, None)]:
                if both or address.ip.version == 4:
                    yield _endpoint(address, port)
        else:
            yield self._add(_loopback_socket())
            for address in choose(interface_addresses(), scope.interface):
                where = (str(address.ip), 0) if address.ip.version == 4 else (str(address.ip), 0, 0, address.index)
                family = socket.AF_INET if address.ip.version == 4 else socket.AF_INET6
                yield _endpoint(address, self._add(_listening(family, where)).port)

    def _add(self, listening: socket.socket) -> Endpoint:
        self._sockets.append(listening)
        host, port = listening.getsockname()[:2]
        return Endpoint.parse(f"{host.partition('%')[0]} {port}")


def _endpoint(address: InterfaceAddress, port: int) -> Endpoint:
    return Endpoint(address.ip, port, address.interface if address.ip.is_link_local else "")


def _endpoints(place: Place) -> list[Endpoint]:
    if len(place.addresses) > _MOST_ADDRESSES:
        raise ValueError(f"{place} published {len(place.addresses)} addresses, more than {_MOST_ADDRESSES}")
    return [Endpoint.parse(text) for text in place.addresses]


def _loopbacks(addresses: Iterable[InterfaceAddress]) -> list[InterfaceAddress]:
    return sorted((a for a in addresses if a.ip.is_loopback), key=lambda a: a.ip.version)


def _loopback_socket() -> socket.socket:
    try:
        return _listening(socket.AF_INET, ("127.0.0.1", 0))
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
    return _listening(socket.AF_INET6, ("::1", 0, 0, 0))


def _wildcard_socket() -> socket.socket:
    """A socket that listens on every IPv4 and IPv6 address; if the machine has no IPv6, on every IPv4 address."""
    try:
        return _listening(socket.AF_INET6, ("::", 0, 0, 0), dual=True)
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
    return _listening(socket.AF_INET, ("0.0.0.0", 0))


def _listening(family: int, where: tuple[str, int] | tuple[str, int, int, int], dual: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        sock.bind(where)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
