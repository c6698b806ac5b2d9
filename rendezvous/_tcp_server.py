"""The server side of a tcp store: one thread, non-blocking sockets, one table of keys and values.

Invariant: no peer (client) can stop the thread's event loop, keep it busy, or make it exceed these bounds:

- `MAX_PENDING` unauthenticated connections (see `_admission`), each for at most `HELLO_TIMEOUT` seconds
- one request at a time per connection, of at most `MAX_KEYS` keys
- `FRAME_TIMEOUT` seconds from the first byte of a request to its last
- `FRAME_TIMEOUT` seconds in a row in which a peer reads no byte of its answer
- `MAX_BUFFERED` bytes of incomplete requests, of all connections together
- `MAX_STORED` bytes and `MAX_STORED_KEYS` keys in the table

Whatever data a peer sends, the worst effect is that its own connection is closed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import operator
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

from . import _wire
from ._admission import MAX_PENDING, Admission
from ._checks import MAX_KEY, MAX_VALUE, NotANumber
from ._table import Table, Watch

FRAME_TIMEOUT = 10.0
MAX_BUFFERED = 256 << 20
MAX_STORED = 256 << 20
MAX_STORED_KEYS = 1 << 18  # four keys for each rank of the largest group
_READ = 1 << 16
_AT_A_TIME = 64  # connections accepted, or waits ended, before the loop goes on to other work
_NO_DESCRIPTORS = 0.1  # seconds until the server accepts again, after it ran out of file descriptors
_LONGEST_PAUSE = 3600.0  # seconds; a selector raises an error for timeouts of more than some weeks


class _Peer:
    """One connection."""

    __slots__ = ("awaited", "counted", "due", "hello", "incoming", "outgoing", "ready", "socket", "watch")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.incoming = bytearray()
        self.counted = 0  # bytes of `incoming` that the server's total includes
        self.outgoing = memoryview(b"")
        self.ready = False  # whether the peer has authenticated
        self.hello: tuple[bytes, bytes] | None = None  # the hellos of client and server, after their exchange
        self.awaited: list[str] = []  # the keys for which the peer waits
        self.due = 0.0  # the deadline of this wait
        self.watch: Watch | None = None  # ends this wait when the keys exist; None while the peer does not wait


class Server:
    """The server of a key-value store: a thread that answers requests from clients over TCP, until it is closed.

    `listeners` are listening sockets; the server owns them and closes them. If `secret` is not None, clients must prove
    that they know it.
    """

    def __init__(self, listeners: Sequence[socket.socket], secret: bytes | None) -> None:
        self._listeners = list(listeners)
        self._secret = secret
        self._table = Table()
        self._selector = selectors.DefaultSelector()
        self._pending: Admission[_Peer] = Admission(MAX_PENDING, _wire.HELLO_TIMEOUT)
        # All entries of one dictionary have the same timeout, so the first entry is the first to expire.
        self._partial: dict[_Peer, float] = {}  # since when a request is incomplete
        self._sending: dict[_Peer, float] = {}  # since when the peer has read no part of its answer
        self._buffered = 0  # bytes of all incomplete requests
        self._waits: list[tuple[float, int, _Peer, Watch]] = []
        self._waits_limit = 1024
        self._ticket = itertools.count()
        self._accepting = False
        self._accept_again = 0.0
        self._stopping = False
        self._alarm, self._bell = socket.socketpair()
        self._alarm.setblocking(False)
        self._selector.register(self._alarm, selectors.EVENT_READ, None)
        for listener in self._listeners:
            listener.setblocking(False)
        self._accept(True)
        self._thread = threading.Thread(target=self._run, name="collectives-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections and wait for the thread. Idempotent."""
        if not self._stopping:
            self._stopping = True
            with contextlib.suppress(OSError):
                self._bell.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                events = self._selector.select(self._pause())
                # Existing connections are served first, because accepting a new connection may close one of them.
                for key, mask in events:
                    if isinstance(key.data, _Peer):
                        self._guard(key.data, self._serve, mask)
                if any(isinstance(key.data, socket.socket) for key, _ in events):
                    self._welcome()
                self._expire(time.monotonic())
        finally:
            for entry in list(self._selector.get_map().values()):
                if isinstance(entry.data, _Peer):
                    entry.data.socket.close()
            for sock in (*self._listeners, self._alarm, self._bell):
                sock.close()
            self._selector.close()

    def _guard(self, peer: _Peer, step: Callable[..., None], *args: object) -> None:
        try:
            step(peer, *args)
        except Exception:  # a lost peer, malformed data, or a bug of ours: other connections must go on
            self._drop(peer)

    # -- accepting

    def _accept(self, wanted: bool) -> None:
        if wanted == self._accepting:
            return
        self._accepting = wanted
        for listener in self._listeners:
            if wanted:
                self._selector.register(listener, selectors.EVENT_READ, listener)
            else:
                self._selector.unregister(listener)

    def _welcome(self) -> None:
        for listener in self._listeners:
            for _ in range(_AT_A_TIME):
                try:
                    connection, address = listener.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    break
                except OSError:  # out of descriptors or memory
                    victim = self._pending.oldest()
                    if victim is None:  # wait until other code releases descriptors or memory
                        self._accept(False)
                        self._accept_again = time.monotonic() + _NO_DESCRIPTORS
                        return
                    self._drop(victim)
                    continue
                connection.setblocking(False)
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer = _Peer(connection)
                victim = self._pending.enter(peer, str(address[0]), time.monotonic())
                if victim is not None:
                    self._drop(victim)
                self._selector.register(connection, selectors.EVENT_READ, peer)

    # -- time

    def _pause(self) -> float:
        """Seconds until something may expire."""
        moments = [time.monotonic() + _LONGEST_PAUSE]
        due = self._pending.due()
        if due is not None:
            moments.append(due)
        if not self._accepting:
            moments.append(self._accept_again)
        for since in (self._partial, self._sending):
            if since:
                moments.append(next(iter(since.values())) + FRAME_TIMEOUT)
        if self._waits:
            moments.append(self._waits[0][0])
        return max(0.0, min(moments) - time.monotonic())

    def _expire(self, now: float) -> None:
        for peer in self._pending.expired(now):
            self._drop(peer)
        if not self._accepting and now >= self._accept_again:
            self._accept(True)
        for waiting in (self._partial, self._sending):
            while waiting:
                peer, since = next(iter(waiting.items()))
                if now - since < FRAME_TIMEOUT:
                    break
                self._drop(peer)
        for _ in range(_AT_A_TIME):
            if not self._waits or self._waits[0][0] > now:
                break
            _, _, peer, watch = heapq.heappop(self._waits)
            if peer.watch is watch:
                self._guard(peer, self._end_wait, now)

    def _drop(self, peer: _Peer) -> None:
        self._pending.leave(peer)
        self._partial.pop(peer, None)
        self._sending.pop(peer, None)
        self._buffered -= peer.counted
        peer.counted = 0
        if peer.watch is not None:
            self._table.unwatch(peer.watch)
            peer.watch = None
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.socket)
        peer.socket.close()

    # -- talking

    def _serve(self, peer: _Peer, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(peer)
        if mask & selectors.EVENT_READ:
            data = peer.socket.recv(_READ)
            if not data or peer.watch is not None:  # the peer has closed, or sends while it waits for an answer
                raise ConnectionResetError
            peer.incoming += data
            if peer.ready:
                self._partial.setdefault(peer, time.monotonic())
        self._advance(peer)
        self._buffered += len(peer.incoming) - peer.counted
        peer.counted = len(peer.incoming)
        while self._buffered > MAX_BUFFERED:  # close the connection with the largest request
            self._drop(max(self._partial, key=operator.attrgetter("counted")))

    def _advance(self, peer: _Peer) -> None:
        """Process complete requests, one at a time."""
        while not peer.outgoing and peer.watch is None:
            if not peer.ready:
                if not self._handshake(peer):
                    return
                continue
            length = _wire.frame_length(peer.incoming, _wire.MAX_REQUEST)
            if length is None or len(peer.incoming) < length:
                if not peer.incoming:
                    self._partial.pop(peer, None)
                return
            self._partial.pop(peer, None)
            frame = bytes(peer.incoming[:length])
            del peer.incoming[:length]
            if peer.incoming:
                self._partial[peer] = time.monotonic()
            self._handle(peer, *_wire.decode(frame, _wire.MAX_KEYS + 1))

    def _handshake(self, peer: _Peer) -> bool:
        """Process the next part of the handshake if it has arrived."""
        if peer.hello is None:
            if len(peer.incoming) < _wire.HELLO_SIZE:
                # a port scanner is recognised by its first bytes
                if not _wire.MAGIC.startswith(bytes(peer.incoming[: len(_wire.MAGIC)])):
                    raise _wire.Malformed
                return False
            hello = _wire.parse_hello(bytes(peer.incoming[: _wire.HELLO_SIZE]))
            del peer.incoming[: _wire.HELLO_SIZE]
            ours = _wire.make_hello(self._secret)
            peer.hello = (hello.raw, ours)
            # A client of another version, or without the secret, gets this hello, too: it shows the client the reason.
            self._send(peer, ours + _wire.tag(self._secret, b"server", hello.raw, ours))
            return True
        if len(peer.incoming) < _wire.TAG_SIZE:
            return False
        proof = bytes(peer.incoming[: _wire.TAG_SIZE])
        del peer.incoming[: _wire.TAG_SIZE]
        hello = _wire.parse_hello(peer.hello[0])
        expected = _wire.tag(self._secret, b"client", *peer.hello)
        if not _wire.same(proof, expected) or hello.version != _wire.VERSION:
            raise _wire.Malformed
        peer.ready = True
        self._pending.leave(peer)
        self._send(peer, _wire.WELCOME)
        return True

    def _send(self, peer: _Peer, data: bytes) -> None:
        peer.outgoing = memoryview(data)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        self._sending.pop(peer, None)
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while peer.outgoing:
                peer.outgoing = peer.outgoing[peer.socket.send(peer.outgoing) :]
        if peer.outgoing:
            self._sending[peer] = time.monotonic()
        # The next request is read only after the reply was sent, so replies cannot accumulate.
        interest = selectors.EVENT_WRITE if peer.outgoing else selectors.EVENT_READ
        if self._selector.get_key(peer.socket).events != interest:
            self._selector.modify(peer.socket, interest, peer)

    def _reply(self, peer: _Peer, code: int, *fields: bytes | None) -> None:
        try:
            frame = _wire.encode(code, fields)
        except ValueError as error:
            frame = _wire.encode(_wire.FAILED, [str(error).encode()])
        self._send(peer, frame)

    # -- requests

    def _handle(self, peer: _Peer, code: int, fields: list[bytes | None]) -> None:
        match code, fields:
            case _wire.SET, [bytes(key), bytes(value)]:
                if self._has_room(peer, _key(key), len(_value(value))):
                    self._table.set(_key(key), value)
                    self._reply(peer, _wire.DONE)
            case _wire.GET, [bytes(key)]:
                self._reply(peer, _wire.DONE, self._table.get(_key(key)))
            case _wire.WAIT, [bytes(timeout), *keys] if len(timeout) <= 12 and timeout.isdigit():
                peer.awaited = [_key(key) for key in keys]
                self._wait(peer, int(timeout) / 1000)
            case _wire.ADD, [bytes(key), bytes(amount)] if len(amount) <= 20:
                if self._has_room(peer, _key(key), 20):
                    try:
                        total = self._table.add(_key(key), int(amount))
                    except NotANumber as error:
                        self._reply(peer, _wire.WRONG, str(error).encode())
                    else:
                        self._reply(peer, _wire.DONE, str(total).encode())
            case _wire.COMPARE_SET, [bytes(key), expected, value]:
                changes = value is not None and self._table.get(_key(key)) == expected
                if not changes or self._has_room(peer, _key(key), len(value or b"")):
                    new = None if value is None else _value(value)
                    self._reply(peer, _wire.DONE, self._table.compare_set(_key(key), expected, new))
            case _wire.DELETE, keys:
                found = self._table.delete([_key(key) for key in keys])
                self._reply(peer, _wire.DONE, str(found).encode())
            case _:
                raise _wire.Malformed

    def _wait(self, peer: _Peer, timeout: float) -> None:
        """Answer a request to wait for keys: at once if all exist, else when all appear or `timeout` has passed."""
        peer.due = time.monotonic() + timeout
        if not self._answer_wait(peer):
            self._watch(peer)

    def _watch(self, peer: _Peer) -> None:
        def wake() -> None:
            # The loop answers it later: a peer must not be served inside the request that wakes it.
            heapq.heappush(self._waits, (0.0, next(self._ticket), peer, watch))

        watch = peer.watch = self._table.watch(self._table.missing(peer.awaited), wake)
        if len(self._waits) > self._waits_limit:  # most entries are waits that have been answered
            self._waits = [entry for entry in self._waits if entry[2].watch is entry[3]]
            heapq.heapify(self._waits)
            self._waits_limit = 2 * len(self._waits) + 1024
        heapq.heappush(self._waits, (peer.due, next(self._ticket), peer, watch))

    def _end_wait(self, peer: _Peer, now: float) -> None:
        if peer.watch is not None:
            self._table.unwatch(peer.watch)
            peer.watch = None
        if self._answer_wait(peer):
            pass
        elif now < peer.due:  # the keys were created and deleted again
            self._watch(peer)
            return
        else:
            self._reply(peer, _wire.TIMEOUT, *(key.encode() for key in self._table.missing(peer.awaited)))
        self._advance(peer)

    def _answer_wait(self, peer: _Peer) -> bool:
        if self._table.missing(peer.awaited):
            return False
        self._reply(peer, _wire.DONE, *(self._table.get(key) for key in peer.awaited))
        return True

    def _has_room(self, peer: _Peer, key: str, size: int) -> bool:
        """Whether the table has room for a value of `size` bytes under `key`; if not, send an error to the peer."""
        if key not in self._table and len(self._table) >= MAX_STORED_KEYS:
            self._reply(peer, _wire.FAILED, f"the store is full ({MAX_STORED_KEYS} keys)".encode())
            return False
        if self._table.nbytes - self._table.weight(key) + len(key) + size > MAX_STORED:
            self._reply(peer, _wire.FAILED, f"the store is full ({MAX_STORED} bytes)".encode())
            return False
        return True


def _key(raw: bytes | None) -> str:
    if raw is None or not 0 < len(raw) <= MAX_KEY:
        raise _wire.Malformed
    return raw.decode()


def _value(raw: bytes) -> bytes:
    if len(raw) > MAX_VALUE:
        raise _wire.Malformed
    return raw
