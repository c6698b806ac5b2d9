"""What is particular to the Redis store: servers that are away, hang, refuse or restart; TTLs; no polling."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectives.native.errors import OpTimeout, StoreError
from collectives.rendezvous.redis import PATIENCE, RedisStore
from collectives.rendezvous.store import open_store
from tests.redis_server import RedisServer, start_redis
from tests.rendezvous.threads import background, together
from tests.waiting import AT_ONCE, eventually


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may hurt."""
    server = start_redis(tmp_path)
    yield server
    server.stop()


def test_refused_connections_name_host_port_and_cause_within_the_deadline() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = unused.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(StoreError, match=rf"redis://127\.0\.0\.1:{port}/0 failed after .* s: .*refused"):
            RedisStore("127.0.0.1", port, timeout=0.5)
        assert time.monotonic() - start < AT_ONCE
        # a long deadline is not used up for a server that is not there
        start = time.monotonic()
        with pytest.raises(StoreError, match="refused"):
            open_store(f"redis://127.0.0.1:{port}", timeout=300)
        assert PATIENCE - 0.1 < time.monotonic() - start < PATIENCE + AT_ONCE


def test_unresolvable_hosts_are_store_errors() -> None:
    with pytest.raises(StoreError, match=r"no-such-host\.invalid:6379"):
        open_store("redis://no-such-host.invalid", timeout=0.2)


def test_silent_servers_are_store_errors_within_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(StoreError, match=str(port)):
            RedisStore("127.0.0.1", port, timeout=0.5)
        assert time.monotonic() - start < AT_ONCE


def test_a_server_that_comes_late_is_met(tmp_path: Path) -> None:
    first = start_redis(tmp_path)
    first.stop()
    thread, outcome = background(lambda: RedisStore("127.0.0.1", first.port, timeout=30))
    again = start_redis(tmp_path, port=first.port)
    thread.join(30)
    outcome.value.close()
    again.stop()


def test_wrong_passwords_are_refused_at_once(redis_password: RedisServer) -> None:
    for user in (":wrong@", "", "nobody:wrong@"):
        start = time.monotonic()
        with pytest.raises(StoreError, match=str(redis_password.port)) as caught:
            open_store(f"redis://{user}127.0.0.1:{redis_password.port}", timeout=30)
        assert time.monotonic() - start < AT_ONCE
        assert "wrong@" not in str(caught.value)


def test_users_restricted_to_our_keys_are_enough(own_server: RedisServer) -> None:
    client = own_server.client()
    rules = ("on", ">pass", "~collectives:*", "+@all", "-@dangerous", "resetchannels")
    client.execute_command("ACL", "SETUSER", "rank", *rules)  # type: ignore[no-untyped-call]
    client.close()
    store = open_store(f"redis://rank:pass@127.0.0.1:{own_server.port}")
    thread, outcome = background(lambda: store.wait(["a"], 30))
    assert store.compare_set("a", None, b"1") == b"1"
    thread.join(30)
    assert outcome.value == [b"1"]
    assert store.delete(["a"]) == 1
    store.close()


def test_databases_are_apart_and_must_exist(redis_plain: RedisServer) -> None:
    first, second = (open_store(f"redis://127.0.0.1:{redis_plain.port}/{number}") for number in (1, 2))
    first.set("a", b"1")
    assert second.get("a") is None
    first.delete(["a"])
    first.close()
    second.close()
    with pytest.raises(StoreError, match="DB index is out of range"):
        open_store(f"redis://127.0.0.1:{redis_plain.port}/999")


def test_certificates_are_checked(redis_tls: RedisServer, redis_plain: RedisServer) -> None:
    folder = redis_tls.certificates
    port = redis_tls.port
    for url, cause in (
        (f"rediss://127.0.0.1:{port}?ca={folder}/other.pem", "certificate verify failed"),
        (f"rediss://127.0.0.1:{port}", "certificate verify failed"),
        (f"rediss://127.0.0.1:{port}?ca={folder}/missing.pem", "No such file"),
    ):
        start = time.monotonic()
        with pytest.raises(StoreError, match=cause):
            open_store(url, timeout=20)
        assert time.monotonic() - start < AT_ONCE
    for url in (f"redis://127.0.0.1:{port}", f"rediss://127.0.0.1:{redis_plain.port}?ca={folder}/ca.pem"):
        with pytest.raises(StoreError, match=url.partition("?")[0]):  # one side waits for the other to speak
            open_store(url, timeout=1)
    by_name = open_store(f"rediss://localhost:{port}?ca={folder}/ca.pem")
    by_name.close()


def test_every_key_carries_a_ttl_and_using_it_renews_it(redis_plain: RedisServer) -> None:
    store = RedisStore("127.0.0.1", redis_plain.port, ttl=1000)
    client = redis_plain.client()
    client.flushall()
    store.set("set", b"1")
    store.add("add", 1)
    store.compare_set("created", None, b"1")
    store.compare_set("created", b"1", b"2")
    with pytest.raises(OpTimeout):
        store.wait(["set", "missing"], 0.05)
    for key in client.keys("*"):
        assert 0 < client.pttl(key) <= 1_000_000
    for use in (lambda: store.get("set"), lambda: store.wait(["set"], 1), lambda: store.set("set", b"3")):
        client.pexpire("collectives:v:set", 5000)
        use()
        assert client.pttl("collectives:v:set") > 900_000
    client.flushall()
    client.close()
    store.close()


def test_a_waiting_client_does_not_poll(own_server: RedisServer) -> None:
    store = open_store(own_server.url)
    client = own_server.client()

    def calls() -> int:
        return int(client.info("stats")["total_commands_processed"])

    before = calls()
    with pytest.raises(OpTimeout):
        store.wait(["never"], 2.5)
    # three slices, each one look and one blocking wait, and what the scripts run inside
    assert calls() - before < 50
    assert client.dbsize() == 0
    client.close()
    store.close()


def test_waiters_that_die_leave_nothing_for_long(own_server: RedisServer) -> None:
    store = open_store(own_server.url)
    client = own_server.client()
    thread, _ = background(lambda: store.wait(["never"], 30))
    assert eventually(lambda: client.dbsize() == 1)
    assert all(0 < client.pttl(key) <= 60_000 for key in client.keys("*"))
    store.close()
    thread.join(10)
    client.close()


def test_a_killed_server_is_a_store_error_within_5_seconds(own_server: RedisServer) -> None:
    store = open_store(own_server.url)
    waiting, outcome = background(lambda: store.wait(["never"], 60))
    with pytest.raises(OpTimeout):
        store.wait(["never"], 0.2)
    own_server.stop()
    start = time.monotonic()
    with pytest.raises(StoreError, match=str(own_server.port)):
        store.get("a", 60)
    with pytest.raises(StoreError):
        store.add("a", 1, 0.1)
    waiting.join(20)
    assert isinstance(outcome.error, StoreError)
    assert time.monotonic() - start < 5 + AT_ONCE
    store.close()


def test_a_server_that_hangs_is_a_store_error_within_5_seconds(own_server: RedisServer) -> None:
    store = open_store(own_server.url)
    store.set("a", b"1")
    own_server.process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(StoreError):
        store.get("a", 0.5)
    assert time.monotonic() - start < AT_ONCE
    with pytest.raises(StoreError):
        store.wait(["b"], 60)
    assert time.monotonic() - start < 5 + AT_ONCE
    own_server.process.send_signal(signal.SIGCONT)
    assert store.get("a") == b"1"
    store.close()


def test_a_restarted_server_is_met_again(tmp_path: Path) -> None:
    first = start_redis(tmp_path)
    store = open_store(first.url)
    store.set("a", b"1")
    waiting, outcome = background(lambda: store.wait(["b"], 60))
    with pytest.raises(OpTimeout):
        store.wait(["b"], 0.2)
    first.stop()
    again = start_redis(tmp_path, port=first.port)
    assert store.get("a") is None  # it has forgotten, but it is there
    store.set("b", b"2")
    waiting.join(30)
    assert outcome.value == [b"2"]
    store.close()
    again.stop()


def test_connections_are_reused(own_server: RedisServer) -> None:
    store = open_store(own_server.url)
    client = own_server.client()
    for number in range(50):
        store.set("a", str(number).encode())
    together([lambda: store.get("a") for _ in range(8)])
    assert eventually(lambda: int(client.info("clients")["connected_clients"]) <= 1 + 8)
    store.close()
    assert eventually(lambda: int(client.info("clients")["connected_clients"]) == 1)
    client.close()


def test_a_full_server_is_a_store_error(own_server: RedisServer) -> None:
    client = own_server.client()
    store = open_store(own_server.url)
    client.config_set("maxmemory", "1")
    with pytest.raises(StoreError, match="maxmemory"):
        store.set("a", b"1")
    client.config_set("maxmemory", "0")
    store.set("a", b"1")
    store.close()
    client.close()


def test_the_module_does_not_hide_redis_py() -> None:
    import redis

    assert "site-packages" in os.fspath(redis.__file__) or hasattr(redis, "Redis")
    assert redis.__name__ == "redis" and not hasattr(redis, "RedisStore")
