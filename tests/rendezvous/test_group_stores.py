"""Stores that fail while a group forms: servers that die, restart or forget everything, and answers that are lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from collectives.native.errors import OpTimeout, StoreError
from collectives.rendezvous.redis import RedisStore
from collectives.rendezvous.tcp import TcpStore
from tests.redis_server import start_redis
from tests.rendezvous.groups import Rank
from tests.rendezvous.threads import background
from tests.waiting import eventually


def test_a_store_that_dies_while_ranks_wait_is_a_store_error_within_5_seconds(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    stores = [RedisStore("127.0.0.1", server.port) for _ in range(3)]
    work = [background(lambda rank=rank: Rank(rank, 4).form(stores[rank])) for rank in range(3)]  # type: ignore[misc]
    with pytest.raises(OpTimeout):
        stores[0].wait(["nothing"], 0.5)
    server.stop()
    start = time.monotonic()
    for thread, outcome in work:
        thread.join(30)
        assert type(outcome.error) is StoreError
        assert str(server.port) in str(outcome.error)
    assert time.monotonic() - start < 5
    for store in stores:
        store.close()


def test_a_store_that_forgets_everything_while_ranks_wait_is_survived(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    client = server.client()
    stores = [RedisStore("127.0.0.1", server.port) for _ in range(4)]
    work = [background(lambda rank=rank: Rank(rank, 4).form(stores[rank])) for rank in range(3)]  # type: ignore[misc]
    for _ in range(2):
        with pytest.raises(OpTimeout):
            stores[3].wait(["nothing"], 0.5)
        client.flushall()
    last = Rank(3, 4).form(stores[3])
    for thread, outcome in work:
        thread.join(30)
        assert outcome.value.run_id == last.run_id
    assert eventually(lambda: client.dbsize() == 0)
    client.close()
    for store in stores:
        store.close()
    server.stop()


def test_a_served_store_that_goes_down_is_a_store_error() -> None:
    server = TcpStore.serve("127.0.0.1", 0)
    client = TcpStore("127.0.0.1", server.port)
    thread, outcome = background(lambda: Rank(1, 3).form(client))
    with pytest.raises(OpTimeout):
        server.wait(["nothing"], 0.3)
    server.close()
    thread.join(10)
    assert isinstance(outcome.error, StoreError)
    client.close()
