"""Stores that fail while a group forms: servers that die, restart or forget everything, and answers that are lost."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from collectives.native.errors import OpTimeout, StoreError
from collectives.rendezvous._checks import Unreachable
from collectives.rendezvous.group import Membership, release
from collectives.rendezvous.keeper import Keeper
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.prefix import PrefixStore
from collectives.rendezvous.redis import RedisStore
from collectives.rendezvous.store import DEFAULT_TIMEOUT, Store
from collectives.rendezvous.tcp import TcpStore
from tests.redis_server import RedisServer, start_redis
from tests.rendezvous.groups import Rank, check_formed, job
from tests.rendezvous.threads import Outcome, background, together
from tests.waiting import AT_ONCE, eventually


class Lossy(PrefixStore):
    """A store with a bad connection: a call for which `lost` is true fails, before or after it takes effect."""

    def __init__(self, store: Store, lost: Callable[[], bool]) -> None:
        super().__init__(store, "l")
        for name in ("get", "set", "wait", "compare_set", "delete"):
            setattr(self, name, self._lose(getattr(store, name), lost))

    def _lose(self, call: Callable[..., Any], lost: Callable[[], bool]) -> Callable[..., Any]:
        def losing(*arguments: Any) -> Any:
            if lost():
                raise Unreachable("the request is lost")
            result = call(*arguments)
            if lost():
                raise Unreachable("the answer is lost")
            return result

        return losing


def three_of_four(server: RedisServer) -> tuple[list[RedisStore], list[tuple[threading.Thread, Outcome[Membership]]]]:
    """Ranks 0 to 2 of four, which wait for the last one: their stores, and what they do."""
    stores = [RedisStore("127.0.0.1", server.port) for _ in range(3)]
    work = [background(lambda rank=rank: Rank(rank, 4).form(stores[rank])) for rank in range(3)]  # type: ignore[misc]
    with pytest.raises(OpTimeout):
        stores[0].wait(["nothing"], 0.5)
    return stores, work


def test_a_store_that_dies_while_ranks_wait_is_a_store_error_within_5_seconds(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    stores, work = three_of_four(server)
    server.stop()
    start = time.monotonic()
    for thread, outcome in work:
        thread.join(30)
        assert type(outcome.error) is StoreError
        assert str(server.port) in str(outcome.error)
    assert time.monotonic() - start < 5 + AT_ONCE
    for store in stores:
        store.close()


def test_a_store_that_restarts_empty_while_ranks_wait_is_survived(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    stores, work = three_of_four(server)
    server.stop()
    time.sleep(1.0)  # longer than a rank waits for a key at a time
    again = start_redis(tmp_path, port=server.port)
    stores.append(RedisStore("127.0.0.1", again.port))
    last = Rank(3, 4).form(stores[3])
    for thread, outcome in work:
        thread.join(30)
        assert outcome.value.run_id == last.run_id
    client = again.client()
    assert eventually(lambda: client.dbsize() == 0)
    client.close()
    for store in stores:
        store.close()
    again.stop()


@pytest.mark.parametrize("seed", range(8))
def test_calls_whose_answers_are_lost_do_no_harm(seed: int) -> None:
    """As when a connection breaks: nobody knows whether the store has done what it was asked to do."""
    space = MemoryStore(secrets.token_hex(4))
    ranks = job(4)

    def store(rank: int) -> Store:
        rng = random.Random(seed << 8 | rank)
        return Lossy(space, lambda: rng.random() < 0.2)

    stores = [store(rank.rank) for rank in ranks]
    check_formed(together([lambda rank=rank: rank.form(stores[rank.rank]) for rank in ranks]), ranks)  # type: ignore[misc]
    space.close()


class Forgetful(PrefixStore):
    """A store that loses all keys once, just before the rank that uses it reads the outcome."""

    def __init__(self, space: MemoryStore) -> None:
        super().__init__(space, "f")
        self._space = space._space
        self._forgotten = False

    def wait(self, keys: Sequence[str], timeout: float = DEFAULT_TIMEOUT) -> list[bytes]:
        found = super().wait(keys, timeout)
        if not self._forgotten:
            self._forgotten = True
            with self._space.lock:
                self._space.table.delete(list(self._space.table._values))
            raise OpTimeout("the server forgot everything")
        return found


def test_a_store_that_forgets_the_outcome_before_all_have_read_it_is_survived() -> None:
    space = MemoryStore(secrets.token_hex(4))
    leader, outcome = background(lambda: Rank(0, 3).form(PrefixStore(space, "f")))
    with pytest.raises(OpTimeout):
        space.wait(["nothing"], 0.2)
    member, first = background(lambda: Rank(1, 3).form(Forgetful(space)))
    last, second = background(lambda: Rank(2, 3).form(PrefixStore(space, "f")))
    leader.join(10)
    assert outcome.value.leader == 0
    keeper = Keeper(PrefixStore(space, "f"), outcome.value)
    member.join(10)
    last.join(10)
    assert first.value.run_id == second.value.run_id == outcome.value.run_id
    keeper.stop()
    release(PrefixStore(space, "f"), outcome.value, 0.1)
    assert len(space._space.table) == 0
    space.close()


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
