"""What one peer of a tcp store's server can cost the others: time, memory, and a place."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from collectives.native.errors import OpTimeout, StoreError
from collectives.rendezvous import _admission, _tcp_server, _wire
from collectives.rendezvous.store import open_store
from collectives.rendezvous.tcp import TcpStore
from tests.rendezvous.dialing import SECRET, dial, dial_and_enter, is_closed, read
from tests.rendezvous.processes import python
from tests.rendezvous.threads import background
from tests.waiting import AT_ONCE, eventually

LONGEST = 999_999_999_999  # milliseconds: the most that a wait's twelve digits say


def answers(server: TcpStore) -> float:
    """Seconds until the server has answered another client."""
    start = time.monotonic()
    client = open_store(server.url, secret=SECRET, timeout=30)
    assert client.add("alive", 1, 30) > 0
    client.close()
    return time.monotonic() - start


# -- time


@pytest.mark.parametrize("timeout", [2_147_483_648, LONGEST])
def test_a_wait_of_centuries_does_not_end_the_server(server: TcpStore, timeout: int) -> None:
    """The selector's own limit is 2 147 483 647 ms, and passing it is an OverflowError."""
    connection = dial_and_enter(server, SECRET)
    connection.sendall(_wire.encode(_wire.WAIT, [str(timeout).encode(), b"never"]))
    for _ in range(3):
        assert answers(server) < AT_ONCE
    server.set("never", b"at last")
    expected = _wire.encode(_wire.DONE, [b"at last"])
    assert read(connection, len(expected)) == expected
    connection.close()


@pytest.mark.parametrize("timeout", [3e6, 1e12, 1e300])
def test_a_client_may_ask_for_centuries(open_server: TcpStore, timeout: float) -> None:
    """A socket's timeout has limits too."""
    client = open_store(open_server.url, timeout=timeout)
    client.set("a", b"1", timeout)
    assert client.get("a", timeout) == b"1"
    assert client.wait(["a"], timeout) == [b"1"]
    client.close()


def test_a_failure_in_the_server_costs_its_peer_alone(server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a request raises, also what nobody thought of."""

    def broken(key: str) -> bytes | None:
        raise ArithmeticError(key)

    assert server._server is not None
    monkeypatch.setattr(server._server._table, "get", broken)
    connection = dial_and_enter(server, SECRET)
    connection.sendall(_wire.encode(_wire.GET, [b"a"]))
    assert is_closed(connection)
    connection.close()
    assert answers(server) < AT_ONCE


# -- how much one request may hold


@pytest.mark.parametrize("code", [_wire.WAIT, _wire.DELETE])
@pytest.mark.parametrize(
    "keys", [1_600_000, 800_000, 8_000_000], ids=["longest frame", "longest request", "empty keys"]
)
def test_a_request_of_millions_of_keys_is_refused_at_once(server: TcpStore, code: int, keys: int) -> None:
    """Each of them kept the server from everybody else for seconds, and several at a time for half a minute."""
    if keys == 8_000_000:
        fields = bytes(4) * keys
    else:
        fields = b"".join(b"\0\0\0\x24%036d" % number for number in range(keys))
    if code == _wire.WAIT:
        fields = b"\0\0\0\x04" + b"1000" + fields
    frame = (len(fields) + 1).to_bytes(4, "big") + bytes([code]) + fields
    connections = [dial_and_enter(server, SECRET) for _ in range(8)]

    def pour(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the server hangs up in the middle
            connection.sendall(frame)

    work = [background(lambda connection=connection: pour(connection)) for connection in connections]  # type: ignore[misc]
    slowest = max(answers(server) for _ in range(5))
    for thread, _ in work:
        thread.join(30)
    slowest = max(slowest, answers(server))
    for connection in connections:
        assert is_closed(connection)
        connection.close()
    assert slowest < AT_ONCE


def test_many_keys_in_one_call_are_asked_for_in_parts(open_server: TcpStore) -> None:
    """A call of ours may name as many keys as a job has ranks; all missing ones are counted."""
    client = open_store(open_server.url)
    names = [f"{number:0100d}" for number in range(3 * _wire.MAX_KEYS + 1)]
    for name in (names[0], names[-1]):
        client.set(name, name.encode())
    with pytest.raises(OpTimeout, match=f"{len(names) - 2} keys did not appear"):
        client.wait(names, 0.1)
    for name in names[1:-1]:
        client.set(name, name.encode())
    assert client.wait(names, 10) == [name.encode() for name in names]
    assert client.delete(names) == len(names)
    assert client.wait([], 1) == []
    assert client.delete([]) == 0
    client.close()


def test_a_wait_in_parts_ends_when_the_last_part_is_there(open_server: TcpStore) -> None:
    client = open_store(open_server.url)
    names = [f"{number}" for number in range(2 * _wire.MAX_KEYS)]
    thread, outcome = background(lambda: client.wait(names, 30))
    for name in reversed(names):
        open_server.set(name, b"")
    thread.join(30)
    assert outcome.value == [b""] * len(names)
    client.close()


# -- how much the table may hold


def test_the_number_of_keys_is_bounded(open_server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tcp_server, "MAX_STORED_KEYS", 3)
    for name in "abc":
        open_server.set(name, b"")
    calls: list[Callable[[], object]] = [
        lambda: open_server.set("d", b""),
        lambda: open_server.add("d", 1),
        lambda: open_server.compare_set("d", None, b""),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=r"tcp://127\.0\.0\.1:\d+.*full.*3 keys"):
            call()
    open_server.set("a", b"other")  # what is there may change
    assert open_server.compare_set("a", b"other", b"1") == b"1"
    assert open_server.add("a", 1) == 2
    assert open_server.compare_set("d", b"x", b"y") is None  # and what changes nothing needs no room
    open_server.delete(["a"])
    open_server.set("d", b"")


def test_replacing_a_large_value_needs_room_for_the_difference_only(
    open_server: TcpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tcp_server, "MAX_STORED", 1000)
    open_server.set("a", bytes(900))
    open_server.set("a", bytes(950))
    with pytest.raises(StoreError, match="full"):
        open_server.set("a", bytes(1100))
    assert open_server.get("a") == bytes(950)


# -- how much the buffers may hold


def test_who_does_not_read_is_dropped(open_server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of a frame that never ends: an answer that is never fetched keeps its memory."""
    monkeypatch.setattr(_tcp_server, "FRAME_TIMEOUT", 1.0)
    open_server.set("big", bytes(16 << 20))
    deaf = dial_and_enter(open_server, None)
    deaf.sendall(_wire.encode(_wire.GET, [b"big"]))
    assert open_server._server is not None
    peers = open_server._server._selector
    assert eventually(lambda: len(peers.get_map()) == 3)  # the alarm, the listener, the test's own client
    deaf.close()
    steady = dial_and_enter(open_server, None)
    steady.sendall(_wire.encode(_wire.GET, [b"big"]))
    received, start = 0, time.monotonic()
    while received < 16 << 20:  # slower than the limit as a whole, but something comes all the time
        part = steady.recv(1 << 19)
        assert part, "dropped"
        received += len(part)
        time.sleep(0.05)
    assert time.monotonic() - start > 1.0
    steady.close()


def test_buffered_requests_are_bounded_together(open_server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many who each begin a long request: those that do not fit are turned away, the server keeps its memory."""
    monkeypatch.setattr(_tcp_server, "MAX_BUFFERED", 4 << 20)
    crowd = [dial_and_enter(open_server, None) for _ in range(8)]
    part = (16 << 20).to_bytes(4, "big") + bytes([_wire.SET]) + bytes(1 << 20)
    for connection in crowd:
        with contextlib.suppress(OSError):
            connection.sendall(part)
    assert eventually(lambda: any(_hung_up(connection) for connection in crowd))
    inner = open_server._server
    assert inner is not None
    assert inner._buffered <= 4 << 20
    assert open_server.add("alive", 1, 10) == 1
    for connection in crowd:
        connection.close()
    assert eventually(lambda: inner._buffered == 0)


def test_a_request_longer_than_any_is_refused_by_its_length(server: TcpStore) -> None:
    connection = dial_and_enter(server, SECRET)
    connection.sendall((_wire.MAX_REQUEST + 1).to_bytes(4, "big") + bytes([_wire.SET]))
    assert is_closed(connection)
    connection.close()


def _hung_up(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


# -- a place


CROWD = """
import resource, selectors, socket, sys
port, size, source, said = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], bytes.fromhex(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (size + 64,) + resource.getrlimit(resource.RLIMIT_NOFILE)[1:])
selector = selectors.DefaultSelector()
def come():
    connection = socket.socket()
    connection.setblocking(False)
    connection.bind((source, 0))
    connection.connect_ex(("127.0.0.1", port))
    selector.register(connection, selectors.EVENT_WRITE)
for _ in range(size): come()
dropped = 0
while True:
    for key, mask in selector.select(0.05):
        connection = key.fileobj
        try:
            if mask & selectors.EVENT_WRITE:
                connection.send(said)
                selector.modify(connection, selectors.EVENT_READ)
            if mask & selectors.EVENT_READ and not connection.recv(4096): raise ConnectionResetError
        except BlockingIOError: pass
        except OSError:
            selector.unregister(connection)
            connection.close()
            come()
            dropped += 1
            if dropped == size: print("refilled", flush=True)
"""


@contextlib.contextmanager
def crowd(server: TcpStore, size: int, message: bytes, source: str = "127.0.0.1") -> Iterator[None]:
    """So many connections that say this and no more, each made anew as soon as it is dropped; all have been by now."""
    worker = python(CROWD, str(server.port), str(size), source, message.hex())
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "refilled\n"
        yield
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.communicate()


HELLO = _wire.make_hello(SECRET)


@pytest.mark.parametrize("message", [b"", HELLO[:20], HELLO], ids=["silent", "half a hello", "a whole hello"])
def test_a_crowd_that_comes_back_does_not_keep_ranks_out(server: TcpStore, message: bytes) -> None:
    with crowd(server, 1500, message):
        assert max(answers(server) for _ in range(5)) < 2 * AT_ONCE


def test_a_crowd_at_one_address_drops_its_own_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest rank that is slow to answer keeps its place while another address floods the server."""
    monkeypatch.setattr(_wire, "HELLO_TIMEOUT", 60.0)  # so that nobody is dropped for its age
    server = TcpStore.serve("127.0.0.1", 0, secret=SECRET)
    slow = dial(server)
    slow.sendall(HELLO)
    answer = read(slow, _wire.HELLO_SIZE + _wire.TAG_SIZE)
    with crowd(server, 2 * _admission.MAX_PENDING, b"", "127.0.0.2"):
        slow.sendall(_wire.tag(SECRET, b"client", HELLO, answer[: _wire.HELLO_SIZE]))
        assert read(slow, 1) == _wire.WELCOME
    slow.close()
    server.close()


def test_a_server_that_dribbles_does_not_hold_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round: a byte now and then of an endless handshake."""
    monkeypatch.setattr(_wire, "HELLO_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def dribble() -> None:
            listener.settimeout(0.1)
            held: list[socket.socket] = []
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    held.append(listener.accept()[0])
                for connection in held:
                    with contextlib.suppress(OSError):
                        connection.send(_wire.MAGIC[:1])
            for connection in held:
                connection.close()

        thread, _ = background(dribble)
        start = time.monotonic()
        with pytest.raises(StoreError):
            TcpStore("127.0.0.1", listener.getsockname()[1], timeout=1.0)
        assert time.monotonic() - start < 1.0 + AT_ONCE
        stop.set()
        thread.join(10)
