"""The stores that every test of this folder runs on.

Invariant: a new store is one line in `KINDS` and one branch in `backend`; the tests know only `Backend`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.prefix import PrefixStore
from collectives.rendezvous.store import Store, open_store
from collectives.rendezvous.tcp import TcpStore

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

PLAIN = ("memory", "file", "redis", "tcp")
KINDS = (
    *PLAIN,
    "redis-password",
    "redis-tls",
    "tcp-secret",
    "prefix-memory",
    "prefix-file",
    "prefix-redis",
    "prefix-tcp",
)


@dataclass(frozen=True)
class Backend:
    """One place where keys are kept, and the ways to it."""

    kind: str
    open: Callable[[], Store]  # another client of the same keys; the test closes it
    leftovers: Callable[[], int]  # keys, files, waiters: whatever the store keeps


@contextmanager
def backend(kind: str, folder: Path, redis_server: Callable[[str], RedisServer]) -> Iterator[Backend]:
    """The backend of this kind, empty. `redis_server` finds a running server by its kind."""
    prefix, _, inner = kind.rpartition("prefix-")
    if prefix != kind and kind.startswith("prefix-"):
        with backend(inner, folder, redis_server) as wrapped:
            yield Backend(kind, lambda: _Owner(wrapped.open(), "some/prefix:"), wrapped.leftovers)
    elif kind == "memory":
        name = secrets.token_hex(4)
        keeper = MemoryStore(name)  # or the keys would go with the last store that a test closes
        try:
            yield Backend(kind, lambda: open_store(f"memory://{name}"), lambda: len(keeper._space.table))
        finally:
            keeper.close()
    elif kind == "file":
        root = folder / "store"
        yield Backend(kind, lambda: open_store(root.as_uri()), lambda: len(os.listdir(root)) if root.exists() else 0)
    elif kind.startswith("tcp"):
        secret = secrets.token_bytes(32) if kind == "tcp-secret" else None
        server = TcpStore.serve("127.0.0.1", 0, secret=secret)
        assert server._server is not None
        table = server._server._table
        try:
            yield Backend(kind, lambda: open_store(server.url, secret=secret), lambda: len(table))
        finally:
            server.close()
    else:
        running = redis_server(kind)
        client = running.client()
        try:
            client.flushall()
            yield Backend(kind, lambda: open_store(running.url), lambda: int(client.dbsize()))
        finally:
            client.close()


class _Owner(PrefixStore):
    """A prefix store that closes what it wraps, so that tests need not know which one they hold."""

    def __init__(self, store: Store, prefix: str) -> None:
        super().__init__(store, prefix)
        self._wrapped = store

    def close(self) -> None:
        super().close()
        self._wrapped.close()
