"""The sockets on which a tcp store's server listens.

Invariant: all sockets of a server have the same port, and other machines can reach them only if the caller allows it.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import time
from typing import Any

from collectives.native.errors import StoreError

from ._checks import Deadline

BACKLOG = 4096  # cut to what the system allows; if it is full, the kernel of a rank tries again after a second
UNKNOWN = 20.0  # seconds for which a host name may be unknown before it counts as wrong


def listen(host: str, port: int, *, open_to_all: bool, deadline: Deadline) -> list[socket.socket]:
    """Return TCP sockets that listen on all addresses of the host name or address `host`, all on one port.

    `port` may be 0, which selects a free port. `open_to_all` must be True if other machines can reach an address. An
    unknown host name is looked up again until the deadline, but for at most `UNKNOWN` seconds. The reason: DNS knows a
    Kubernetes Pod only some seconds after the Pod's start.

    Raises: ValueError if other machines can reach an address without `open_to_all`; StoreError if the name is unknown
    or the port is in use.
    """
    try:
        infos = _resolved(host, port, deadline)
        loopback = all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)
        if loopback and host.lower() != "localhost" and not _is_literal(host):
            infos = socket.getaddrinfo(None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            loopback = False
    except OSError as error:
        raise StoreError(
            f"tcp store: cannot resolve {host!r} within {deadline.elapsed():.1f} s: {error.strerror or error}"
        ) from error
    if not loopback and not open_to_all:
        raise ValueError(
            f"tcp store on {host!r}: other machines could reach it, so it needs a secret "
            "(COLLECTIVES_SECRET_FILE), or insecure=True to accept all clients; for ranks of one machine use 127.0.0.1"
        )
    for _ in range(8):  # with port 0: a port that is free in IPv4 may be in use in IPv6, or the reverse
        listeners: list[socket.socket] = []
        failure: OSError | None = None
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            try:
                listeners.append(_bind(family, kind, protocol, address, listeners, port))
            except OSError as error:
                failure = error
                if error.errno == errno.EADDRINUSE:
                    break
        # An address family that this machine lacks is no error, but a port in use is.
        if listeners and (failure is None or failure.errno != errno.EADDRINUSE):
            return listeners
        for sock in listeners:
            sock.close()
        if port:
            break
    raise StoreError(f"tcp store: cannot serve on {host}:{port}: {failure}") from failure


def _resolved(host: str, port: int, deadline: Deadline) -> list[Any]:
    pause = 0.1
    while True:
        try:
            return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))
        except socket.gaierror as error:
            left = min(deadline.left(), UNKNOWN - deadline.elapsed())
            if error.errno not in (socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_AGAIN) or left <= 0:
                raise
        time.sleep(min(pause, left))
        pause = min(2 * pause, 1.0)


def _bind(
    family: int, kind: int, protocol: int, address: Any, listeners: list[socket.socket], port: int
) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address[0], listeners[0].getsockname()[1] if listeners else port, *address[2:]))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_literal(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host.partition("%")[0])
        return True
    return False
