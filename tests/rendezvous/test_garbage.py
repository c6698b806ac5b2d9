"""What somebody else has written where ranks meet: an error that names store and key, or none at all."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collectives.core.links import Member
from collectives.native.errors import CollectiveError, ConfigMismatch, OpTimeout, StoreError
from collectives.rendezvous import _wire
from collectives.rendezvous._records import Hello, Scope, parse_notice
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.redis import RedisStore
from collectives.rendezvous.tcp import TcpStore
from tests.redis_server import RedisServer
from tests.rendezvous.backends import Backend
from tests.rendezvous.groups import VERSION, find_notice, job, meet
from tests.rendezvous.store_calls import CALLS
from tests.rendezvous.threads import background
from tests.waiting import eventually

GARBAGE = [
    b"",
    b"\0",
    b"\1",
    b"\xff\xfe\x00",
    b"not a number",
    b"9" * 5000,
    b"-0",
    b"\0{",
    b"\0[]",
    b"\0" + b"[" * 100_000,
    b'\0{"v": 1e999}',
    b"\0" + json.dumps({"v": 1, "session": "\ud800", "state": "open"}).encode(),
    bytes(1 << 20),
]
KEYS = ["notice", "slot/0", "slot/1", "flag", "beat", "go", "left"]


# -- under the keys of ranks that meet


@pytest.mark.parametrize("key", KEYS)
def test_garbage_under_a_key_ends_in_an_error_of_ours_or_in_a_group(key: str, plain_backend: Backend) -> None:
    """Whoever writes over and over to a key of the session can keep it from forming, no more."""
    stop = threading.Event()
    meddler = plain_backend.open()
    scope = Scope("group", None, 0, None)

    def meddle() -> None:
        turn = 0
        while not stop.is_set():
            notice = parse_notice(scope.unseal("notice", meddler.get(scope.notice) or b"")[0])
            value = GARBAGE[turn % len(GARBAGE)]
            if notice is not None:
                meddler.set(scope.notice if key == "notice" else scope.key(notice.session, key), value)
                turn += 1
            stop.wait(0.01)

    thread, outcome = background(meddle)
    try:
        found = meet(plain_backend.open, job(3, timeout=1.0))
    finally:
        stop.set()
        thread.join(30)
        meddler.close()
    assert outcome.error is None
    for one in found:
        assert one.error is None or isinstance(one.error, CollectiveError), one.error
        assert one.seconds < 15


@pytest.mark.parametrize("key", ["slot/1", "flag", "go"])
def test_the_error_names_store_and_key(key: str, plain_backend: Backend) -> None:
    """Without a secret, a rank that knows another one is no likely cause."""
    meddler, host, member = (plain_backend.open() for _ in range(3))
    scope = Scope("group", None, 0, None)
    ranks = job(2, timeout=3.0 if key == "go" else 30.0)
    thread, outcome = background(lambda: ranks[0].form(host))
    assert eventually(lambda: find_notice(meddler) is not None)
    notice = find_notice(meddler)
    assert notice is not None
    meddler.set(scope.key(notice.session, key), b"garbage")
    if key == "go":  # which members read
        with pytest.raises(StoreError) as caught:
            ranks[1].form(member)
        error: BaseException | None = caught.value
    thread.join(30)
    if key != "go":
        error = outcome.error
    assert isinstance(error, StoreError), error
    assert repr(host) in str(error) and f"{notice.session}/{key}" in str(error)
    for store in (meddler, host, member):
        store.close()


def test_adding_to_garbage_is_a_store_error_that_names_store_and_key(any_backend: Backend) -> None:
    """Also a ValueError, which is what it was."""
    store = any_backend.open()
    for value in (b"x", b"", b" 1", b"1 ", b"+1", b"01", b"1" * 5000, b"9" * 19 + b"9"):
        store.set("some key", value)
        with pytest.raises(StoreError, match="some key") as caught:
            store.add("some key", 1)
        assert isinstance(caught.value, ValueError)
        assert repr(store).split(" under")[0] in str(caught.value)
        assert store.get("some key") == value
    store.close()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -1, 2**64])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\ud800", "a\nb", "x" * 2000, "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(changes={"record": {"x": float("nan")}})
@example(changes={"record": {"x": float("inf")}})
@example(changes={"record": {"x": _nested(300)}})
@example(changes={"nonce": "\ud800"})
@example(changes={"fingerprint": "\ud800", "size": 10**400})
@example(changes={"size": 1, "rank": 1})
@given(
    changes=st.dictionaries(
        st.sampled_from(["rank", "size", "nonce", "fingerprint", "place", "origin", "record"]), JSON
    )
)
def test_a_forged_hello_is_refused_or_passed_on_whole(changes: dict[str, Any]) -> None:
    """What the host accepts it can pass on, and every member can read."""
    store, client = MemoryStore("forged hello"), MemoryStore("forged hello")
    scope = Scope("group", None, 0, None)
    notice = None
    for timeout in (0.2, 2.0, 20.0):  # where the first passes before this thread has seen the notice
        host = job(2, timeout=timeout, settle=0.0)[0]
        thread, outcome = background(lambda host=host: host.form(client))  # type: ignore[misc]
        while notice is None and thread.is_alive():
            notice = find_notice(store)
        if notice is not None:
            break
    assert notice is not None
    hello = {**Hello(1, 2, "n", VERSION, "p", "o", {}).document(), **changes}
    store.set(scope.key(notice.session, "slot/1"), b"\0" + json.dumps(hello).encode())
    thread.join(30)
    assert outcome.error is None or isinstance(outcome.error, CollectiveError), outcome.error
    if outcome.error is None:
        end = parse_notice(scope.unseal("notice", store.get(scope.notice) or b"")[0])
        assert end is not None and end.state == "closed"
        assert [dict(entry.record) for entry in end.roster or ()] == [dict(record) for record in outcome.value.records]
    for open_store in (store, client):
        open_store.close()


@settings(max_examples=300, deadline=None)
@example(record={"host": {"quota": 10**400}, "addresses": {}})
@given(record=JSON | st.fixed_dictionaries({"host": JSON, "addresses": JSON}))
def test_a_forged_record_is_a_config_mismatch(record: Any) -> None:
    from collectives.core.links import decode

    good = json.loads(json.dumps(_member().to_json()))
    for value in (record, {**good, "addresses": record}, {**good, "host": record}):
        with contextlib.suppress(ConfigMismatch):
            decode(1, value)
    if isinstance(record, dict) and isinstance(record.get("host"), dict):
        with contextlib.suppress(ConfigMismatch):
            decode(1, {**good, "host": {**good["host"], **record["host"]}})


def _member() -> Member:
    from collectives.transports.host import HostIdentity

    return Member(HostIdentity.here(), {"tcp": ("127.0.0.1:1",)})


# -- in the directory of a file store

# -- answers of what is no store


FRAMES = st.builds(
    _wire.encode, st.sampled_from([0, 1, 16, 17, 18, 19, 255]), st.lists(st.none() | st.binary(max_size=20), max_size=4)
)


def _rogue(answer: bytes) -> tuple[socket.socket, Callable[[], None]]:
    """A server that shakes hands as it should, gives this answer to whatever it is asked, and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                peer.settimeout(5)
                hello = peer.recv(_wire.HELLO_SIZE, socket.MSG_WAITALL)
                ours = _wire.make_hello(None)
                peer.sendall(ours + _wire.tag(None, b"server", hello, ours))
                peer.recv(_wire.TAG_SIZE, socket.MSG_WAITALL)
                peer.sendall(_wire.WELCOME)
                with contextlib.suppress(OSError), peer:
                    peer.recv(1 << 16)
                    peer.sendall(answer)

    return listener, serve


@settings(max_examples=80, deadline=None)
@example(answer=_wire.encode(_wire.WRONG, [b"\xff"]))
@example(answer=_wire.encode(_wire.DONE, [b"x"]))
@example(answer=_wire.encode(_wire.TIMEOUT, []))
@example(answer=b"\0\0\0\x05\x10\0\0\0\x09")
@given(answer=FRAMES | st.binary(min_size=4, max_size=60).map(lambda data: b"\0\0\0" + data))
def test_an_answer_that_makes_no_sense_is_a_store_error(answer: bytes) -> None:
    listener, serve = _rogue(answer)
    thread, _ = background(serve)
    port = listener.getsockname()[1]
    store = TcpStore("127.0.0.1", port, timeout=5)
    calls: list[Callable[[], Any]] = [
        lambda: store.set("a", b"1", 0.1),
        lambda: store.get("a", 0.1),
        lambda: store.wait(["a", "b"], 0.1),
        lambda: store.add("a", 1, 0.1),
        lambda: store.compare_set("a", None, b"1", 0.1),
        lambda: store.delete(["a"], 0.1),
    ]
    for call in calls:
        with contextlib.suppress(StoreError, OpTimeout):
            call()
    store.close()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


REDIS_ANSWERS = [
    b":x\r\n",
    b"$x\r\n",
    b"*x\r\n",
    b"*1\r\n:1\r\n",
    b"+OK\r\n",
    b"*-1\r\n",
    b"$-1\r\n",
    b"\xff\xff\r\n",
    b"*2\r\n:1\r\n:2\r\n",
]


@pytest.mark.parametrize("answer", REDIS_ANSWERS)
def test_a_server_that_speaks_no_redis_is_a_store_error(answer: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with contextlib.suppress(OSError), peer:
                    while asked := peer.recv(1 << 16):
                        peer.sendall(b"+PONG\r\n" if b"PING" in asked else answer * asked.count(b"\r\n*") or answer)

    thread, _ = background(serve)
    port = listener.getsockname()[1]
    with contextlib.suppress(StoreError):
        store = RedisStore("127.0.0.1", port, timeout=2)
        for call in CALLS.values():
            with contextlib.suppress(StoreError, OpTimeout):
                call(store)
        store.close()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def test_other_types_and_sizes_in_redis(find_redis: Callable[[str], RedisServer]) -> None:
    running = find_redis("redis")
    client = running.client()
    client.flushall()
    store = RedisStore("127.0.0.1", running.port)
    client.rpush("collectives:v:a", "element")
    for call in CALLS.values():
        with pytest.raises(StoreError, match=r"redis://127.0.0.1:\d+/0.*'a'.*wrong kind of value"):
            call(store)
    client.delete("collectives:v:a")
    client.setrange("collectives:v:a", (16 << 20) + 1, b"x")
    for name in ("get", "wait", "compare_set"):
        with pytest.raises(StoreError, match=r"'a' holds 16777218 bytes"):
            CALLS[name](store)
    client.flushall()
    client.close()
    store.close()
