"""A tcp store's server among those who do not belong: no secret, garbage, slowness, crowds."""

from __future__ import annotations

import secrets
import socket
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collectives.native.errors import AuthError, ConfigMismatch, StoreError
from collectives.rendezvous import _admission, _tcp_server, _wire
from collectives.rendezvous.store import open_store
from collectives.rendezvous.tcp import TcpStore
from tests.rendezvous.dialing import SECRET, dial, dial_and_enter, is_closed, read
from tests.rendezvous.processes import python
from tests.rendezvous.threads import background, together
from tests.waiting import AT_ONCE, eventually

# -- secrets


def test_who_does_not_know_the_secret_stays_outside(server: TcpStore) -> None:
    friend = open_store(server.url, secret=SECRET)
    friend.set("a", b"1")
    for secret, complaint in ((secrets.token_bytes(32), "does not know this rank's secret"), (None, "has a secret")):
        start = time.monotonic()
        with pytest.raises(AuthError, match=complaint):
            open_store(server.url, secret=secret, timeout=30)
        assert time.monotonic() - start < AT_ONCE
    assert friend.get("a") == b"1"
    friend.close()


def test_a_server_without_the_secret_is_not_trusted(open_server: TcpStore) -> None:
    with pytest.raises(AuthError, match="has none"):
        open_store(open_server.url, secret=SECRET)


def test_handshakes_cannot_be_reflected_or_replayed(server: TcpStore) -> None:
    ours = _wire.make_hello(SECRET)
    first = dial(server)
    first.sendall(ours)
    answer = read(first, _wire.HELLO_SIZE + _wire.TAG_SIZE)
    theirs, proof = answer[: _wire.HELLO_SIZE], answer[_wire.HELLO_SIZE :]
    first.sendall(proof)  # the server's own tag
    assert is_closed(first)
    first.close()
    second = dial(server)
    second.sendall(ours)
    read(second, _wire.HELLO_SIZE + _wire.TAG_SIZE)
    second.sendall(_wire.tag(SECRET, b"client", ours, theirs))  # right for the connection before
    assert is_closed(second)
    second.close()


def test_requests_before_the_handshake_are_not_served(server: TcpStore) -> None:
    connection = dial(server)
    connection.sendall(_wire.encode(_wire.SET, [b"a", b"1"]))
    assert is_closed(connection)
    assert server.get("a") is None
    connection.close()


def test_other_versions_are_refused_and_both_are_printed(server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = dial(server)
    hello = bytearray(_wire.make_hello(SECRET))
    hello[8:10] = (7).to_bytes(2, "big")
    connection.sendall(hello)
    theirs = _wire.parse_hello(read(connection, _wire.HELLO_SIZE + _wire.TAG_SIZE)[: _wire.HELLO_SIZE])
    assert theirs.version == _wire.VERSION  # so that the newer side can say it
    connection.sendall(_wire.tag(SECRET, b"client", bytes(hello), theirs.raw))
    assert is_closed(connection)
    connection.close()
    with socket.create_server(("127.0.0.1", 0)) as future:
        thread, outcome = background(lambda: TcpStore("127.0.0.1", future.getsockname()[1], timeout=10))
        peer, _ = future.accept()
        peer.sendall(bytes(hello))
        thread.join(10)
        peer.close()
    assert isinstance(outcome.error, ConfigMismatch)
    assert "version 7" in str(outcome.error) and f"rank {_wire.VERSION}" in str(outcome.error)


def test_something_else_at_that_port_is_said_to_be_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:
        thread, outcome = background(lambda: TcpStore("127.0.0.1", web.getsockname()[1], timeout=10))
        peer, _ = web.accept()
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        thread.join(10)
        peer.close()
    assert isinstance(outcome.error, StoreError)
    assert "not a store of this library" in str(outcome.error)


# -- garbage

FRAMES = st.builds(
    _wire.encode,
    st.integers(0, 255),
    st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=5),
)
LENGTHS = st.builds(
    lambda length, rest: length.to_bytes(4, "big") + rest,
    st.sampled_from([0, 1, 5, _wire.MAX_FRAME, _wire.MAX_FRAME + 1, 2**31, 2**32 - 1]),
    st.binary(max_size=64),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(data=b"GET / HTTP/1.0\r\n\r\n")
@example(data=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
@example(data=_wire.MAGIC + bytes(100))
@given(data=st.binary(min_size=1, max_size=300))
def test_garbage_instead_of_a_hello(server: TcpStore, data: bytes) -> None:
    connection = dial(server)
    connection.sendall(data)
    connection.close()
    assert server.add("alive", 1, 30) > 0


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(data=_wire.encode(_wire.WAIT, [b"99999999999999999999", b"a"]))
@example(data=_wire.encode(_wire.WAIT, [b"\xb2", b"a"]))
@example(data=_wire.encode(_wire.ADD, [b"a", b"1" * 4000]))
@example(data=_wire.encode(_wire.ADD, [b"alive", b"x"]))
@example(data=_wire.encode(_wire.SET, [b"\xff\xfe", b""]))
@example(data=_wire.encode(_wire.GET, []) * 3)
@example(data=_wire.encode(_wire.DELETE, [None, b"a"]))
@example(data=_wire.encode(_wire.WAIT, [b"10", b"a"]) * 2)
@given(data=st.one_of(FRAMES, LENGTHS, st.binary(max_size=100), st.tuples(FRAMES, FRAMES).map(b"".join)))
def test_garbage_from_who_has_authenticated(server: TcpStore, data: bytes) -> None:
    connection = dial_and_enter(server, SECRET)
    connection.sendall(data)
    connection.close()
    assert server.add("alive", 1, 30) > 0


def test_valid_frames_by_hand(server: TcpStore) -> None:
    """The fuzzers above reach the requests: this is what they send, and it is answered."""
    connection = dial_and_enter(server, SECRET)
    connection.sendall(_wire.encode(_wire.SET, [b"a", b"1"]) + _wire.encode(_wire.GET, [b"a"]))  # two at a time
    done = _wire.encode(_wire.DONE, [])
    assert read(connection, len(done)) == done
    value = _wire.encode(_wire.DONE, [b"1"])
    assert read(connection, len(value)) == value
    connection.close()


def test_a_byte_at_a_time_is_fine(server: TcpStore) -> None:
    connection = dial_and_enter(server, SECRET)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in _wire.encode(_wire.SET, [b"slow", b"but steady"]):
        connection.sendall(bytes([byte]))
    assert _wire.decode(read(connection, 5))[0] == _wire.DONE
    assert server.get("slow") == b"but steady"
    connection.close()


def test_the_table_is_bounded(open_server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tcp_server, "MAX_STORED", 1000)
    open_server.set("a", bytes(600))
    with pytest.raises(StoreError, match="full"):
        open_server.set("b", bytes(600))
    with pytest.raises(StoreError, match="full"):
        open_server.compare_set("b", None, bytes(600))
    assert open_server.delete(["a"]) == 1
    open_server.set("b", bytes(600))


# -- slow and many


def test_ranks_join_beside_slow_hellos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wire, "HELLO_TIMEOUT", 60.0)  # so that nobody is dropped meanwhile
    server = TcpStore.serve("127.0.0.1", 0, secret=SECRET)
    slow = [dial(server) for _ in range(40)]
    for connection in slow:
        connection.sendall(_wire.MAGIC[:3])
    start = time.monotonic()
    client = open_store(server.url, secret=SECRET, timeout=30)
    client.set("a", b"1")
    assert time.monotonic() - start < AT_ONCE
    for connection in slow:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is still connected
            connection.recv(1)
        connection.close()
    client.close()
    server.close()


def test_slow_hellos_are_dropped_after_two_seconds(server: TcpStore) -> None:
    start = time.monotonic()
    slow = [dial(server) for _ in range(40)]
    for connection in slow:
        connection.sendall(_wire.MAGIC[:3])
    for connection in slow:
        assert is_closed(connection)
        connection.close()
    assert 1.9 < time.monotonic() - start < 2 + AT_ONCE


def test_hundreds_of_slow_connections_do_not_keep_ranks_out(server: TcpStore) -> None:
    slow = []
    for _ in range(450):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", server.port))
        slow.append(connection)
    start = time.monotonic()
    outcomes = together([lambda: open_store(server.url, secret=SECRET, timeout=20) for _ in range(16)])
    for outcome in outcomes:
        outcome.value.set("a", b"1")
        outcome.value.close()
    assert time.monotonic() - start < AT_ONCE
    for connection in slow:
        connection.close()


def test_a_frame_that_never_ends_is_dropped(server: TcpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tcp_server, "FRAME_TIMEOUT", 0.3)
    connection = dial_and_enter(server, SECRET)
    idle = dial_and_enter(server, SECRET)
    connection.sendall((1000).to_bytes(4, "big") + b"\x01")
    assert is_closed(connection)
    idle.settimeout(0.2)
    assert not is_closed(idle)  # who says nothing may stay
    connection.close()
    idle.close()


def test_who_does_not_read_disturbs_nobody(open_server: TcpStore) -> None:
    open_server.set("big", bytes(8 << 20))
    deaf = [dial_and_enter(open_server, None) for _ in range(4)]
    for connection in deaf:
        connection.sendall(_wire.encode(_wire.GET, [b"big"]) * 3)
    start = time.monotonic()
    assert open_server.add("n", 1, 30) == 1
    assert time.monotonic() - start < AT_ONCE
    for connection in deaf:
        connection.close()


def test_running_out_of_descriptors_is_survived() -> None:
    code = """
import resource, socket, time
from collectives.rendezvous.tcp import TcpStore
store = TcpStore.serve("127.0.0.1", 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
crowd = []
try:
    while True: crowd.append(socket.create_connection(("127.0.0.1", store.port), timeout=5))
except OSError as error: print(error.errno)
store.set("a", b"1", 5)
for connection in crowd: connection.close()
client = TcpStore("127.0.0.1", store.port, timeout=10)
print(client.get("a", 10))
client.close()
store.close()
"""
    worker = python(code)
    output, errors = worker.communicate(timeout=60)
    assert output.split() == ["24", "b'1'"], errors


def test_pending_connections_are_bounded(server: TcpStore) -> None:
    inner = server._server
    assert inner is not None
    crowd = [dial(server) for _ in range(_admission.MAX_PENDING + 100)]
    assert eventually(lambda: len(inner._pending) == _admission.MAX_PENDING)
    for connection in crowd[:100]:  # the oldest made room
        assert is_closed(connection)
    for connection in crowd:
        connection.close()
