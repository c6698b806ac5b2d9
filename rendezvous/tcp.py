"""A store that rank 0 serves on a TCP socket to all ranks, itself included.

Invariant: keys live exactly as long as the store that serves them. A client retries until its deadline while
the server has not come up yet; once connected, a lost server is an error at once, since it took the keys
along.

A server that other machines can reach demands the job's secret from every client and proves that it knows
it itself (`_wire` has the handshake); what is exchanged afterwards is not encrypted.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from native.errors import AuthError, ConfigMismatch, StoreError

from . import _wire
from ._checks import (
    DEFAULT_TIMEOUT,
    GRACE,
    Deadline,
    check_amount,
    check_key,
    check_keys,
    check_timeout,
    check_value,
    missing,
)
from ._tcp_server import BACKLOG, Server

_TRY = 2.0  # seconds for one attempt to reach one address


class TcpStore:
    """`tcp://host:port`: a client of the server there; `TcpStore.serve` starts the server and its client.

    Each call uses a connection of its own, kept for the next call; a call that waits is parked on the
    server, so nothing polls.
    """

    def __init__(self, host: str, port: int, *, secret: bytes | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Connect, retrying until `timeout`.

        Raises: StoreError, AuthError (one side has no secret, or another one), ConfigMismatch (the server
        speaks another version).
        """
        deadline = Deadline(timeout)
        if not 0 < port < 65536:
            raise ValueError(f"port {port} is not a port to connect to")
        self.host = host
        self.port = port
        self._secret = secret or None
        self._server: Server | None = None
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._closed = False
        self._pid = os.getpid()
        self._put_back(self._connect(deadline, patient=True))

    @classmethod
    def serve(
        cls,
        host: str,
        port: int,
        *,
        secret: bytes | None = None,
        insecure: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> TcpStore:
        """Serve on `host`, which must be an address of this machine; port 0 takes a free one (see `url`).

        A name that resolves to loopback only on this machine (Debian's 127.0.1.1) is served on all
        interfaces, since others resolve it otherwise.

        Raises: ValueError for an address others can reach without a secret, unless `insecure`; StoreError
        where the address cannot be bound.
        """
        check_timeout(timeout)
        if not 0 <= port < 65536:
            raise ValueError(f"port {port} is not a port to serve on")
        listeners = _listen(host, port, open_to_all=bool(secret) or insecure)
        bound = listeners[0].getsockname()
        server = Server(listeners, secret or None)
        try:
            wildcard = ipaddress.ip_address(bound[0].partition("%")[0]).is_unspecified
            here = host if not wildcard else ("::1" if ":" in bound[0] else "127.0.0.1")
            store = cls(here, bound[1], secret=secret, timeout=timeout)
        except BaseException:
            server.close()
            raise
        store.host = host
        store._server = server
        return store

    @property
    def url(self) -> str:
        return f"tcp://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __repr__(self) -> str:
        return self.url

    def set(self, key: str, value: bytes, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._call(_wire.SET, [check_key(key).encode(), check_value(value)], Deadline(timeout))

    def get(self, key: str, timeout: float = DEFAULT_TIMEOUT) -> bytes | None:
        return self._call(_wire.GET, [check_key(key).encode()], Deadline(timeout))[0]

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        names = [key.encode() for key in check_keys(keys)]
        deadline = Deadline(timeout)
        # rounded up, so that the server does not give up before our deadline
        fields = [str(min(int(deadline.left() * 1000) + 1, 10**11)).encode(), *names]
        return [value for value in self._call(_wire.WAIT, fields, deadline) if value is not None]

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        fields = [check_key(key).encode(), str(check_amount(amount)).encode()]
        return int(self._call(_wire.ADD, fields, Deadline(timeout))[0] or 0)

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        old = None if expected is None else check_value(expected)
        new = None if value is None else check_value(value)
        return self._call(_wire.COMPARE_SET, [check_key(key).encode(), old, new], Deadline(timeout))[0]

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        names = [key.encode() for key in check_keys(keys)]
        return int(self._call(_wire.DELETE, names, Deadline(timeout))[0] or 0)

    def close(self) -> None:
        """As Store.close; the store that serves takes the keys and everybody's connections with it."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            if self._pid == os.getpid():
                for connection in self._busy:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)  # its user wakes up and closes it
        for connection in idle:
            connection.close()
        if self._server is not None and self._pid == os.getpid():
            self._server.close()

    # -- one exchange

    def _call(self, code: int, fields: Iterable[bytes | None], deadline: Deadline) -> list[bytes | None]:
        request = _wire.encode(code, fields)
        connection = self._take(deadline)
        try:
            connection.settimeout(deadline.left() + GRACE)
            connection.sendall(request)
            reply = _receive_frame(connection, deadline)
        except (OSError, _wire.Malformed) as error:
            self._discard(connection)
            self._check_open()
            raise self._failed(
                "lost the server" if not isinstance(error, TimeoutError) else "no answer", error, deadline
            ) from error
        except BaseException:  # an interrupt: the answer may still come, so the connection is of no use
            self._discard(connection)
            raise
        self._put_back(connection)
        status, results = _wire.decode(reply)
        if status == _wire.DONE:
            return results
        if status == _wire.TIMEOUT:
            raise missing(repr(self), [(key or b"").decode() for key in results], deadline.elapsed())
        text = (results[0] or b"").decode() if results else "no reason given"
        raise ValueError(text) if status == _wire.WRONG else StoreError(f"{self!r}: {text}")

    def _take(self, deadline: Deadline) -> socket.socket:
        self._check_open()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
                if connection is not None:
                    self._busy.add(connection)
            if connection is None:
                return self._connect(deadline, patient=False)
            if _is_quiet(connection):
                return connection
            self._discard(connection)

    def _put_back(self, connection: socket.socket) -> None:
        with self._lock:
            self._busy.discard(connection)
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _discard(self, connection: socket.socket) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self!r} was closed")
        if self._pid != os.getpid():
            raise StoreError(f"{self!r} was opened by process {self._pid}; a forked child must open its own")

    def _failed(self, what: str, error: BaseException, deadline: Deadline) -> StoreError:
        return StoreError(f"{self!r}: {what} after {deadline.elapsed():.1f} s: {error or type(error).__name__}")

    # -- connecting

    def _connect(self, deadline: Deadline, *, patient: bool) -> socket.socket:
        """A connection that has authenticated, counted as busy."""
        pause = 0.02
        while True:
            try:
                infos = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            except OSError as error:
                failure: BaseException = error
                infos = []
            for family, kind, protocol, _, address in infos:
                connection = socket.socket(family, kind, protocol)
                try:
                    connection.settimeout(min(_TRY, max(deadline.left(), GRACE)))
                    connection.connect(address)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._authenticate(connection)
                except (OSError, EOFError) as error:
                    connection.close()
                    failure = error
                    continue
                except BaseException:
                    connection.close()
                    raise
                with self._lock:
                    self._busy.add(connection)
                return connection
            refused = isinstance(failure, ConnectionRefusedError)
            if deadline.passed or (refused and not patient):
                raise self._failed("cannot connect", failure, deadline) from failure
            time.sleep(min(pause, deadline.left()))
            pause = min(2 * pause, 0.2)

    def _authenticate(self, connection: socket.socket) -> None:
        connection.settimeout(_wire.HELLO_TIMEOUT)
        ours = _wire.make_hello(self._secret)
        connection.sendall(ours)
        try:
            theirs = _wire.parse_hello(_receive(connection, _wire.HELLO_SIZE))
        except _wire.Malformed:
            raise StoreError(f"{self!r}: what answers there is not a store of this library") from None
        if theirs.version != _wire.VERSION:
            raise ConfigMismatch(
                f"{self!r}: the store speaks version {theirs.version} of its protocol, this rank {_wire.VERSION}; "
                "install the same release of the library on every rank"
            )
        if theirs.has_secret != (self._secret is not None):
            with_secret, without = ("the store", "this rank") if theirs.has_secret else ("this rank", "the store")
            raise AuthError(f"{self!r}: {with_secret} has a secret and {without} has none; give all ranks the same")
        if not _wire.same(_receive(connection, _wire.TAG_SIZE), _wire.tag(self._secret, b"server", ours, theirs.raw)):
            raise AuthError(f"{self!r}: the store does not know this rank's secret; give all ranks the same")
        connection.sendall(_wire.tag(self._secret, b"client", ours, theirs.raw))
        _receive(connection, len(_wire.WELCOME))


def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes; EOFError if the peer hangs up first."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 18))
        if not part:
            raise EOFError("the server closed the connection")
        data += part
    return bytes(data)


def _receive_frame(connection: socket.socket, deadline: Deadline) -> bytearray:
    data = bytearray()
    length: int | None = None
    while length is None or len(data) < length:
        connection.settimeout(deadline.left() + GRACE)
        part = connection.recv(1 << 18)
        if not part:
            raise ConnectionResetError("the server closed the connection")
        data += part
        length = _wire.frame_length(data)
    if len(data) > length:
        raise _wire.Malformed("an answer nobody asked for")
    return data


def _is_quiet(connection: socket.socket) -> bool:
    """Whether an idle connection is still open and has nothing to say."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except (BlockingIOError, InterruptedError):
        return True
    except OSError:
        return False
    return False


def _listen(host: str, port: int, *, open_to_all: bool) -> list[socket.socket]:
    """Listening sockets on all addresses of `host`, on one port."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        loopback = all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)
        if loopback and host.lower() != "localhost" and not _is_literal(host):
            infos = socket.getaddrinfo(None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            loopback = False
    except OSError as error:
        raise StoreError(f"tcp store: cannot resolve {host!r}: {error}") from error
    if not loopback and not open_to_all:
        raise ValueError(
            f"tcp store on {host!r}: other machines could reach it, so it needs a secret "
            "(COLLECTIVES_SECRET_FILE), or insecure=True to serve everybody; for ranks of one machine use 127.0.0.1"
        )
    for _ in range(8):  # with port 0, the port free in one family may be taken in the other
        listeners: list[socket.socket] = []
        failure: OSError | None = None
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            try:
                listeners.append(_bind(family, kind, protocol, address, listeners, port))
            except OSError as error:
                failure = error
                if error.errno == errno.EADDRINUSE:
                    break
        # a family this machine does not have is no loss; a port that is taken in one of them is
        if listeners and (failure is None or failure.errno != errno.EADDRINUSE):
            return listeners
        for sock in listeners:
            sock.close()
        if port:
            break
    raise StoreError(f"tcp store: cannot serve on {host}:{port}: {failure}") from failure


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
