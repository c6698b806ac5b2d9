"""What ranks of a group that has formed say to each other through the store."""

from __future__ import annotations

from typing import Any

import pytest

from collectives.native.errors import AuthError, OpTimeout
from collectives.rendezvous import exchange, release
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.store import Store
from tests.rendezvous.backends import Backend
from tests.rendezvous.groups import Rank, job
from tests.rendezvous.threads import together


def message(rank: Rank, store: Store, timeout: float = 30.0) -> list[Any]:
    membership = rank.form(store)
    found = exchange(store, membership, {"rank": rank.rank, "text": "x" * rank.rank}, timeout)
    release(store, membership)
    return found


@pytest.mark.parametrize("secret", [None, b"s" * 32], ids=["open", "secret"])
def test_every_rank_gets_what_all_pass_and_nothing_is_left(plain_backend: Backend, secret: bytes | None) -> None:
    for size in (1, 2, 5):
        clients = [plain_backend.open() for _ in range(size)]
        calls = [
            lambda rank=rank, store=store: message(rank, store)
            for rank, store in zip(job(size, secret=secret), clients, strict=True)
        ]
        outcomes = [outcome.value for outcome in together(calls)]
        assert outcomes == [[{"rank": rank, "text": "x" * rank} for rank in range(size)]] * size
        for client in clients:
            client.close()
        assert plain_backend.leftovers() == 0


def test_a_rank_that_says_nothing_is_named(plain_backend: Backend) -> None:
    clients = [plain_backend.open() for _ in range(3)]

    def silent(rank: Rank, store: Store) -> None:
        release(store, rank.form(store))

    ranks = job(3)
    outcomes = together(
        [
            lambda: message(ranks[0], clients[0], 0.5),
            lambda: silent(ranks[1], clients[1]),
            lambda: message(ranks[2], clients[2], 0.5),
        ]
    )
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert len(errors) == 2 and all(isinstance(error, OpTimeout) and 1 in error.late for error in errors)
    for client in clients:
        client.close()
    assert plain_backend.leftovers() == 0


def test_what_none_of_them_wrote_is_refused() -> None:
    store = MemoryStore("exchange")
    member = Rank(0, 1, options={"secret": b"s" * 32}).form(store)
    other = Rank(0, 1, options={"secret": b"t" * 32, "name": "other"}).form(store)
    key = member.scope.key(member.session, "word/0")

    class Meddled:
        """Another one's word lies where the rank's was."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def wait(self, keys: list[str], timeout: float) -> list[bytes]:
            return [other.scope.seal(key, {"value": 1}) for _ in keys]

    with pytest.raises(AuthError, match="was not written by rank 0"):
        exchange(Meddled(), member, 1, 5.0)  # type: ignore[arg-type]
    store.close()
