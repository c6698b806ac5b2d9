"""Talk to a tcp store's server by hand.

Invariant: knows the protocol only through `_wire`; every read has a deadline.
"""

from __future__ import annotations

import socket

from collectives.rendezvous import _wire
from collectives.rendezvous.tcp import TcpStore

SECRET = bytes(range(32))  # of the stores in these tests


def dial(server: TcpStore, *, reading: float = 10.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=reading)


def dial_and_enter(server: TcpStore, secret: bytes | None) -> socket.socket:
    """A connection that has authenticated, by hand."""
    connection = dial(server)
    ours = _wire.make_hello(secret)
    connection.sendall(ours)
    answer = read(connection, _wire.HELLO_SIZE + _wire.TAG_SIZE)
    theirs = answer[: _wire.HELLO_SIZE]
    assert answer[_wire.HELLO_SIZE :] == _wire.tag(secret, b"server", ours, theirs)
    connection.sendall(_wire.tag(secret, b"client", ours, theirs))
    assert read(connection, 1) == _wire.WELCOME
    return connection


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the server hung up"
        data += part
    return data


def is_closed(connection: socket.socket) -> bool:
    """Whether the server hangs up, within the socket's timeout."""
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True
