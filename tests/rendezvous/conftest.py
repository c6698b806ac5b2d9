"""Fixtures over the stores of `backends`, and ranks that run as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectives.rendezvous.store import Store
from collectives.rendezvous.tcp import TcpStore
from tests.rendezvous.backends import KINDS, PLAIN, Backend, backend
from tests.rendezvous.dialing import SECRET

if TYPE_CHECKING:
    from tests.redis_server import RedisServer


@pytest.fixture
def find_redis(request: pytest.FixtureRequest) -> Callable[[str], RedisServer]:
    """The session's server for a kind of backend; starts it if need be."""
    fixtures = {"redis": "redis_plain", "redis-password": "redis_password", "redis-tls": "redis_tls"}

    def find(kind: str) -> RedisServer:
        server: RedisServer = request.getfixturevalue(fixtures[kind])
        return server

    return find


@pytest.fixture(params=KINDS)
def any_backend(
    request: pytest.FixtureRequest, tmp_path: Path, find_redis: Callable[[str], RedisServer]
) -> Iterator[Backend]:
    """Every store in every way to reach it."""
    with backend(request.param, tmp_path, find_redis) as found:
        yield found


@pytest.fixture(params=PLAIN)
def plain_backend(
    request: pytest.FixtureRequest, tmp_path: Path, find_redis: Callable[[str], RedisServer]
) -> Iterator[Backend]:
    """Every store once, for tests of what is built on top."""
    with backend(request.param, tmp_path, find_redis) as found:
        yield found


@pytest.fixture
def memory_backend(tmp_path: Path, find_redis: Callable[[str], RedisServer]) -> Iterator[Backend]:
    """The quickest store, for long tables of cases that need not be repeated on all."""
    with backend("memory", tmp_path, find_redis) as found:
        yield found


@pytest.fixture
def store(any_backend: Backend) -> Iterator[Store]:
    """A client of `any_backend`."""
    opened = any_backend.open()
    yield opened
    opened.close()


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Fails the test if threads outlive it."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    for thread in left:
        thread.join(10)
    assert not [thread for thread in left if thread.is_alive()]


@pytest.fixture
def server() -> Iterator[TcpStore]:
    """A store that serves, with a secret."""
    store = TcpStore.serve("127.0.0.1", 0, secret=SECRET)
    yield store
    store.close()


@pytest.fixture
def open_server() -> Iterator[TcpStore]:
    """A store that serves everybody on this machine."""
    store = TcpStore.serve("127.0.0.1", 0)
    yield store
    store.close()
