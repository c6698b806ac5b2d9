"""A store that rank 0 serves on a TCP socket to all ranks, itself included.

Invariant: keys exist exactly as long as the store that serves them. While no server runs yet, a new client retries
until its deadline. Once a client has connected, loss of the server is an error at once, since the keys are lost, too.
If other machines can reach a server, client and server prove to each other that they know the job's secret, unless the
caller allows `insecure` (the module `_wire` describes the handshake). Traffic is not encrypted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import socket
import threading
import time
from collections.abc import Iterable, Sequence

from collectives.native.errors import AuthError, ConfigMismatch, StoreError

from . import _wire
from ._checks import (
    DEFAULT_TIMEOUT,
    GRACE,
    Deadline,
    NotANumber,
    Unreachable,
    check_amount,
    check_key,
    check_keys,
    check_value,
    missing,
    parts,
)
from ._listening import listen
from ._tcp_server import Server

_TRY = 2.0  # seconds for one attempt to reach one address
_LONGEST = 24 * 3600.0  # seconds of one exchange; sockets refuse timeouts of years, so a longer wait is repeated


class TcpStore:
    """A client of the key-value store at `tcp://host:port`, which a process of the job serves.

    `TcpStore.serve` starts a server. Threads may call the client at the same time: each call has a connection of its
    own, which stays open for later calls. The server answers a `wait` only when the keys exist, so clients do not poll.
    """

    def __init__(self, host: str, port: int, *, secret: bytes | None = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Connect to the server; retry for at most `timeout` seconds.

        Raises: StoreError if no connection is made in this time; AuthError if client and server do not have the same
        secret; ConfigMismatch if the server speaks another version of the protocol.
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
        """Start a key-value store's server in this process, and return a client of it.

        `host` is a name or an address of this machine. Port 0 selects a free port; the property `url` has its number.
        On some machines (Debian: 127.0.1.1), the machine's own name stands for a loopback address, which other machines
        cannot use. For such a name the server listens on all interfaces. `timeout` is in seconds.

        Raises: ValueError if other machines can reach the address, but `secret` is None and `insecure` is False;
        StoreError if the server cannot listen on the address.
        """
        deadline = Deadline(timeout)
        if not 0 <= port < 65536:
            raise ValueError(f"port {port} is not a port to serve on")
        listeners = listen(host, port, open_to_all=bool(secret) or insecure, deadline=deadline)
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
        return self._one(self._call(_wire.GET, [check_key(key).encode()], Deadline(timeout)))

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        names = check_keys(keys)
        deadline = Deadline(timeout)
        found: list[bytes] = []
        absent: list[str] = []
        for part in parts(names, _wire.MAX_KEYS):
            # After the deadline, the other keys are still asked for, to list all that are missing.
            values, lacking = self._wait(part, deadline)
            found += values
            absent += lacking
        if absent:
            raise missing(repr(self), absent, deadline.elapsed())
        return found

    def add(self, key: str, amount: int, timeout: float = DEFAULT_TIMEOUT) -> int:
        fields = [check_key(key).encode(), str(check_amount(amount)).encode()]
        return self._number(self._call(_wire.ADD, fields, Deadline(timeout)))

    def compare_set(
        self, key: str, expected: bytes | None, value: bytes | None, timeout: float = DEFAULT_TIMEOUT
    ) -> bytes | None:
        old = None if expected is None else check_value(expected)
        new = None if value is None else check_value(value)
        return self._one(self._call(_wire.COMPARE_SET, [check_key(key).encode(), old, new], Deadline(timeout)))

    def delete(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> int:
        names = [key.encode() for key in check_keys(keys)]
        deadline = Deadline(timeout)
        return sum(self._number(self._call(_wire.DELETE, part, deadline)) for part in parts(names, _wire.MAX_KEYS))

    def close(self) -> None:
        """Close all connections to the key-value store. Idempotent. Later calls of other methods raise StoreError.

        If this object was returned by `serve`, the server stops as well, and its keys are lost.
        """
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            if self._pid == os.getpid():
                for connection in self._busy:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)  # the thread that uses it wakes up and closes it
        for connection in idle:
            connection.close()
        if self._server is not None and self._pid == os.getpid():
            self._server.close()

    # -- one exchange

    def _wait(self, names: Sequence[str], deadline: Deadline) -> tuple[list[bytes], list[str]]:
        """Wait for the keys `names`; returns (their values, []), or at the deadline ([], the keys that are missing)."""
        while True:
            left = min(deadline.left(), _LONGEST)
            # milliseconds, rounded up, so that the server does not give up before our deadline
            fields = [str(int(left * 1000) + 1).encode(), *(name.encode() for name in names)]
            status, results = self._exchange(_wire.WAIT, fields, deadline)
            values = [value for value in results if value is not None]
            if status == _wire.DONE and len(values) == len(results) == len(names):
                return values, []
            lacking = {value.decode(errors="replace") for value in values}
            absent = [name for name in names if name in lacking]
            if status != _wire.TIMEOUT or not absent:
                raise self._nonsense()
            if deadline.passed:
                return [], absent

    def _call(self, code: int, fields: Iterable[bytes | None], deadline: Deadline) -> list[bytes | None]:
        status, results = self._exchange(code, fields, deadline)
        if status != _wire.DONE:
            raise self._nonsense()
        return results

    def _exchange(
        self, code: int, fields: Iterable[bytes | None], deadline: Deadline
    ) -> tuple[int, list[bytes | None]]:
        """Send the request `code` with `fields`; returns the answer's status and fields. Raises the server's errors."""
        request = _wire.encode(code, fields)
        connection = self._take(deadline)
        try:
            connection.settimeout(min(deadline.left(), _LONGEST) + GRACE)
            connection.sendall(request)
            status, results = _wire.decode(_receive_frame(connection, deadline))
        except (OSError, _wire.Malformed) as error:
            self._discard(connection)
            self._check_open()
            if isinstance(error, TimeoutError):  # the server is slow, or its process is suspended
                raise Unreachable(str(self._failed("no answer", error, deadline))) from error
            raise self._failed("lost the server", error, deadline) from error
        except (
            BaseException
        ):  # for example an interrupt: the answer may still come, so the connection cannot be used again
            self._discard(connection)
            raise
        self._put_back(connection)
        if status in (_wire.WRONG, _wire.FAILED):
            text = (results[0] or b"").decode(errors="replace") if results else "no reason given"
            raise (NotANumber if status == _wire.WRONG else StoreError)(f"{self!r}: {text}")
        return status, results

    def _one(self, results: list[bytes | None]) -> bytes | None:
        if len(results) != 1:
            raise self._nonsense()
        return results[0]

    def _number(self, results: list[bytes | None]) -> int:
        value = self._one(results)
        try:
            return int(value or b"") if len(value or b"") <= 20 else int("")
        except ValueError:
            raise self._nonsense() from None

    def _nonsense(self) -> StoreError:
        return StoreError(f"{self!r}: the answer makes no sense; is it a store of the same release of this library?")

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
        """A new, authenticated connection, already in `_busy`. `patient`: retry also if the connection is refused."""
        pause = 0.01
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
                    self._authenticate(connection, Deadline(min(_wire.HELLO_TIMEOUT, max(deadline.left(), GRACE))))
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
            # Pauses are random, so that ranks whose connections displaced each other do not retry at the same time.
            time.sleep(min(random.uniform(pause / 2, pause), deadline.left()))
            pause = min(1.5 * pause, 0.2)

    def _authenticate(self, connection: socket.socket, deadline: Deadline) -> None:
        """Run the whole handshake before the deadline."""
        connection.settimeout(deadline.left())
        ours = _wire.make_hello(self._secret)
        connection.sendall(ours)
        try:
            theirs = _wire.parse_hello(_receive(connection, _wire.HELLO_SIZE, deadline))
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
        proof = _receive(connection, _wire.TAG_SIZE, deadline)
        if not _wire.same(proof, _wire.tag(self._secret, b"server", ours, theirs.raw)):
            raise AuthError(f"{self!r}: the store does not know this rank's secret; give all ranks the same")
        connection.sendall(_wire.tag(self._secret, b"client", ours, theirs.raw))
        _receive(connection, len(_wire.WELCOME), deadline)


def _receive(connection: socket.socket, size: int, deadline: Deadline) -> bytes:
    """Receive exactly `size` bytes; EOFError if the peer closes first, TimeoutError at the deadline."""
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(deadline.left(), 0.001))
        part = connection.recv(min(size - len(data), 1 << 18))
        if not part:
            raise EOFError("the server closed the connection")
        data += part
    return bytes(data)


def _receive_frame(connection: socket.socket, deadline: Deadline) -> bytearray:
    data = bytearray()
    length: int | None = None
    while length is None or len(data) < length:
        connection.settimeout(min(deadline.left(), _LONGEST) + GRACE)
        part = connection.recv(1 << 18)
        if not part:
            raise ConnectionResetError("the server closed the connection")
        data += part
        length = _wire.frame_length(data)
    if len(data) > length:
        raise _wire.Malformed("an answer nobody asked for")
    return data


def _is_quiet(connection: socket.socket) -> bool:
    """Whether an idle connection is still open and has no unread data."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except (BlockingIOError, InterruptedError):
        return True
    except OSError:
        return False
    return False
