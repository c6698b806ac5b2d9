"""What is particular to the tcp store: its server under garbage, secrets, late and lost servers."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import pytest

from collectives.native.errors import OpTimeout, StoreError
from collectives.rendezvous import _wire
from collectives.rendezvous.store import open_store
from collectives.rendezvous.tcp import TcpStore
from tests.rendezvous.dialing import SECRET, dial_and_enter, read
from tests.rendezvous.processes import python
from tests.rendezvous.threads import background
from tests.waiting import AT_ONCE

# -- serving


def test_port_0_takes_a_free_port_and_url_tells_it() -> None:
    one, other = TcpStore.serve("127.0.0.1", 0), TcpStore.serve("127.0.0.1", 0)
    assert one.port != other.port
    client = open_store(one.url)
    client.set("a", b"1")
    assert one.get("a") == b"1"
    assert other.get("a") is None
    for store in (client, one, other):
        store.close()


def test_a_port_can_be_served_again_at_once() -> None:
    port = 0
    for _ in range(3):
        store = TcpStore.serve("127.0.0.1", port)
        port = store.port
        client = open_store(store.url)
        client.set("a", b"1")
        store.close()  # first, so that the server's side of the connection lingers
        client.close()


def test_a_port_in_use_is_a_store_error(open_server: TcpStore) -> None:
    with pytest.raises(StoreError, match=f"cannot serve on 127.0.0.1:{open_server.port}.*in use"):
        TcpStore.serve("127.0.0.1", open_server.port)


def test_an_address_of_another_machine_cannot_be_served() -> None:
    with pytest.raises(StoreError, match=r"cannot serve on 192\.0\.2\.1"):
        TcpStore.serve("192.0.2.1", 0, secret=SECRET)
    with pytest.raises(StoreError, match="cannot resolve"):
        TcpStore.serve("no-such-host.invalid", 0, secret=SECRET, timeout=0.1)


def test_a_name_that_is_not_known_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of Pods, which the DNS learns a few seconds after they have started."""
    asked = []
    really = socket.getaddrinfo

    def later(host: str | None, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return really("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", later)
    store = TcpStore.serve("train-0.train", 0, secret=SECRET)
    assert len(asked) > 3
    store.set("a", b"1")
    store.close()


def test_what_others_can_reach_needs_a_secret() -> None:
    for host in ("0.0.0.0", "192.0.2.1"):
        with pytest.raises(ValueError, match="needs a secret"):
            TcpStore.serve(host, 0)
    store = TcpStore.serve("0.0.0.0", 0, insecure=True)
    store.close()
    store = TcpStore.serve("0.0.0.0", 0, secret=SECRET)
    client = open_store(f"tcp://127.0.0.1:{store.port}", secret=SECRET)
    client.close()
    store.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_in_every_spelling(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    store = open_store(f"tcp://{f'[{host}]' if ':' in host else host}:0", host=True)
    assert isinstance(store, TcpStore)
    client = open_store(store.url)
    client.set("a", b"1")
    assert store.get("a") == b"1"
    client.close()
    store.close()


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_closing_gives_back_threads_and_descriptors() -> None:
    def use() -> None:
        store = TcpStore.serve("127.0.0.1", 0)
        client = open_store(store.url)
        client.set("a", b"1")
        client.close()
        store.close()

    use()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        use()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_hundreds_of_clients(open_server: TcpStore) -> None:
    clients = [TcpStore("127.0.0.1", open_server.port) for _ in range(300)]
    waits = [background(lambda client=client: client.wait(["go"], 60)) for client in clients]  # type: ignore[misc]
    for number, client in enumerate(clients):
        client.set(f"k{number}", b"x")  # on a second connection of each
    open_server.set("go", b"1")
    for thread, outcome in waits:
        thread.join(60)
        assert outcome.value == [b"1"]
    for client in clients:
        client.close()


def test_answered_waits_are_forgotten(open_server: TcpStore) -> None:
    inner = open_server._server
    assert inner is not None
    connection = dial_and_enter(open_server, None)
    for number in range(1500):
        key = f"k{number}".encode()
        connection.sendall(_wire.encode(_wire.WAIT, [b"1000000", key]))
        open_server.get("x")  # what was sent before a request that was answered has been read
        open_server.set(key.decode(), b"")
        answer = _wire.encode(_wire.DONE, [b""])
        assert read(connection, len(answer)) == answer
    assert len(inner._waits) < 1200
    connection.close()


# -- coming late, going away


def test_clients_wait_for_a_server_that_comes_late() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
    thread, outcome = background(lambda: TcpStore("127.0.0.1", port, timeout=30))
    with pytest.raises(StoreError, match="refused"):
        TcpStore("127.0.0.1", port, timeout=0.3)
    assert thread.is_alive()
    store = TcpStore.serve("127.0.0.1", port)
    thread.join(10)
    outcome.value.close()
    store.close()


def test_no_server_is_a_store_error_at_the_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"tcp://127\.0\.0\.1:1: cannot connect after \d+\.\d s: .*refused"):
        open_store("tcp://127.0.0.1:1", timeout=0.4)
    assert 0.4 <= time.monotonic() - start < AT_ONCE


def test_a_lost_server_is_a_store_error_at_once() -> None:
    store = TcpStore.serve("127.0.0.1", 0)
    client = open_store(store.url)
    thread, outcome = background(lambda: client.wait(["never"], 60))
    with pytest.raises(OpTimeout):
        client.wait(["never"], 0.2)
    store.close()
    thread.join(5)
    assert isinstance(outcome.error, StoreError)
    start = time.monotonic()
    with pytest.raises(StoreError, match="refused"):
        client.set("a", b"1", 60)
    assert time.monotonic() - start < AT_ONCE
    client.close()


def test_a_server_that_hangs_is_a_store_error_after_the_deadline(open_server: TcpStore) -> None:
    inner = open_server._server
    assert inner is not None
    client = open_store(open_server.url)
    client.set("a", b"1")
    blocked, done = threading.Event(), threading.Event()

    def hang() -> None:
        blocked.set()
        done.wait(20)

    inner._table.watch(["hang"], hang)
    thread, _ = background(lambda: open_server.set("hang", b""))
    assert blocked.wait(10)
    start = time.monotonic()
    with pytest.raises(StoreError, match="no answer"):
        client.get("a", 0.3)
    assert 0.3 <= time.monotonic() - start < AT_ONCE
    done.set()
    thread.join(10)
    assert client.get("a") == b"1"
    client.close()


def test_a_forked_child_cannot_use_its_parents_store() -> None:
    code = """
import os
from collectives.native.errors import StoreError
from collectives.rendezvous.tcp import TcpStore
store = TcpStore.serve("127.0.0.1", 0)
store.set("a", b"1")
if os.fork() == 0:
    try:
        store.get("a")
    except StoreError as error:
        print(error, flush=True)
    store.close()
    os._exit(0)
print(os.wait()[1], store.get("a"), flush=True)
store.close()
"""
    worker = python(code)  # forking is not for a process with threads, as this one is
    output, errors = worker.communicate(timeout=60)
    assert "a forked child must open its own" in output, errors
    assert output.endswith("0 b'1'\n")  # and it has closed nothing of the parent's
