"""Groups that form: who is in, how fast, how often, and what stays in the store."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from collectives.native.errors import OpTimeout
from collectives.rendezvous import open_store
from collectives.rendezvous.group import MAX_NAME, Membership, form, release
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.prefix import PrefixStore
from collectives.rendezvous.store import Store
from collectives.rendezvous.tcp import TcpStore
from tests.rendezvous.backends import Backend
from tests.rendezvous.groups import Rank, check_formed, job, meet
from tests.rendezvous.threads import background, together
from tests.waiting import eventually


@pytest.mark.parametrize("secret", [None, b"s" * 32], ids=["open", "secret"])
@pytest.mark.parametrize("run_id", [None, "run"], ids=["bare", "run id"])
def test_ranks_meet_and_agree(plain_backend: Backend, secret: bytes | None, run_id: str | None) -> None:
    for size in (1, 2, 3, 7):
        ranks = job(size, secret=secret, run_id=run_id)
        check_formed(meet(plain_backend.open, ranks), ranks)
        assert plain_backend.leftovers() == 0


def test_64_ranks_meet(plain_backend: Backend) -> None:
    ranks = job(64)
    outcomes = meet(plain_backend.open, ranks)
    check_formed(outcomes, ranks)
    assert plain_backend.leftovers() == 0


def test_ranks_may_come_one_by_one_in_any_order(plain_backend: Backend) -> None:
    store = plain_backend.open()
    waiting = []
    for rank in (2, 0, 3):
        client = plain_backend.open()
        waiting.append((client, *background(lambda rank=rank, client=client: Rank(rank, 4).form(client))))  # type: ignore[misc]
        with pytest.raises(OpTimeout):
            store.wait(["nothing"], 0.3)
    assert all(thread.is_alive() for _, thread, _ in waiting)
    last = Rank(1, 4).form(store)
    for client, thread, outcome in waiting:
        thread.join(10)
        assert outcome.value.run_id == last.run_id
        client.close()
    release(store, last)
    assert plain_backend.leftovers() == 0
    store.close()


def test_many_rounds_under_one_name_leave_nothing_and_never_mix(plain_backend: Backend) -> None:
    """Ranks form and release as fast as each can; a quick one may be a round ahead of a slow one."""
    rounds, size = 25, 3
    options: dict[str, Any] = {"run_id": "same for all"}

    def run(rank: int) -> list[bytes]:
        store = plain_backend.open()
        try:
            seen = []
            for _ in range(rounds):
                member = Rank(rank, size, options=options).form(store)
                seen.append(member.run_id)
                release(store, member)
            return seen
        finally:
            store.close()

    outcomes = together([lambda rank=rank: run(rank) for rank in range(size)])  # type: ignore[misc]
    runs = outcomes[0].value
    assert len(set(runs)) == rounds
    assert all(outcome.value == runs for outcome in outcomes)
    assert plain_backend.leftovers() == 0


def test_several_groups_over_one_store_at_once(plain_backend: Backend) -> None:
    ranks = [*job(4, "a", name="a"), *job(4, "b", name="b"), *job(4, "c", name="a", epoch=1), *job(4, "d", name="a/0")]
    outcomes = meet(plain_backend.open, ranks)
    for start in range(0, 16, 4):
        check_formed(outcomes[start : start + 4], ranks[start : start + 4])


def test_survivors_meet_again_under_the_next_epoch(plain_backend: Backend) -> None:
    before = meet(plain_backend.open, job(4, run_id="r"))
    ranks = job(3, run_id="r", epoch=1)
    after = meet(plain_backend.open, ranks)
    check_formed(after, ranks)
    assert {outcome.value.epoch for outcome in after} == {1}
    assert after[0].value.run_id != before[0].value.run_id


def test_threads_may_share_one_client(plain_backend: Backend) -> None:
    store = plain_backend.open()
    ranks = job(5)
    check_formed(together([lambda rank=rank: rank.form(store) for rank in ranks]), ranks)  # type: ignore[misc]
    store.close()


def test_records_travel_as_json_of_up_to_4_kib(plain_backend: Backend) -> None:
    record: dict[str, Any] = {"text": "ü€𝄞\n", "list": [1, 2.5, None, True, {"a": []}], "fill": ""}
    record["fill"] = "x" * (4096 - 110)

    def run(rank: int, store: Store) -> Membership:
        return form(store, rank=rank, size=2, name="n", record=record, fingerprint="f", timeout=20)

    store = plain_backend.open()
    for outcome in together([lambda rank=rank: run(rank, store) for rank in range(2)]):  # type: ignore[misc]
        assert list(outcome.value.records) == [record, record]
    record["fill"] = "changed"
    assert outcome.value.records[0]["fill"] != "changed"
    store.close()


def test_rank_0_may_close_its_served_store_at_once() -> None:
    server = TcpStore.serve("127.0.0.1", 0)
    clients = [open_store(server.url) for _ in range(7)]

    def run(rank: int, store: Store) -> Membership:
        member = Rank(rank, 8).form(store)
        release(store, member)
        store.close()
        return member

    stores = [server, *clients]
    work = [lambda rank=rank, store=store: run(rank, store) for rank, store in enumerate(stores)]
    assert len({outcome.value.run_id for outcome in together(work)}) == 1


def test_a_group_through_a_view_of_a_store(plain_backend: Backend) -> None:
    store = plain_backend.open()
    ranks = job(3)
    check_formed(meet(lambda: PrefixStore(store, "view:"), ranks), ranks)
    store.close()


def test_release_is_idempotent_and_does_not_mind_a_lost_store() -> None:
    server = TcpStore.serve("127.0.0.1", 0)
    client = open_store(server.url)
    member = Rank(0, 1).form(client)
    release(client, member)
    release(client, member)
    server.close()
    release(client, member)
    client.close()
    release(client, member)
    with pytest.raises(ValueError, match="timeout"):
        release(client, member, math.nan)


def test_waiting_ranks_are_cheap(memory_backend: Backend) -> None:
    """A rank that waits long for others makes few calls: counted at its store, where a wait counts several."""
    store, other = _Counting(memory_backend.open()), _Counting(memory_backend.open())
    work = [
        background(lambda rank=rank, store=store: Rank(rank, 3, options={"timeout": 3.0}).form(store))  # type: ignore[misc]
        for rank, store in enumerate((store, other))
    ]
    for thread, outcome in work:
        thread.join(20)
        assert isinstance(outcome.error, OpTimeout)
    assert store.calls + other.calls < 450
    store.close()
    other.close()


class _Counting(PrefixStore):
    """Counts calls."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "p")
        self.calls = 0
        self._inner = store

    def _open(self) -> Store:
        self.calls += 1
        return self._inner

    def close(self) -> None:
        self._inner.close()


GOOD: dict[str, Any] = {"rank": 0, "size": 2, "name": "n", "record": {}, "fingerprint": "f", "timeout": 1.0}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"rank": 2}, ValueError, "rank must be 0 to 1"),
        ({"rank": -1}, ValueError, "rank must be 0 to 1"),
        ({"rank": "0"}, TypeError, "rank must be an int"),
        ({"rank": True}, TypeError, "rank must be an int"),
        ({"rank": 0.0}, TypeError, "rank must be an int"),
        ({"size": 0}, ValueError, "size must be"),
        ({"size": 1 << 20}, ValueError, "size must be"),
        ({"size": None}, TypeError, "size must be"),
        ({"name": ""}, ValueError, "name must be"),
        ({"name": "a\nb"}, ValueError, "name must be"),
        ({"name": "ü" * MAX_NAME}, ValueError, "name must be"),
        ({"name": None}, TypeError, "name must be"),
        ({"fingerprint": ""}, ValueError, "fingerprint must be"),
        ({"fingerprint": b"f"}, TypeError, "fingerprint must be"),
        ({"run_id": ""}, ValueError, "run id must be"),
        ({"run_id": 5}, TypeError, "run id must be"),
        ({"epoch": -1}, ValueError, "epoch"),
        ({"epoch": 1.0}, TypeError, "epoch"),
        ({"secret": b"short"}, ValueError, "secret"),
        ({"secret": "s" * 32}, TypeError, "secret"),
        ({"timeout": math.nan}, ValueError, "timeout"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"timeout": None}, TypeError, "timeout"),
        ({"settle": math.inf}, ValueError, "settle"),
        ({"record": {"a": "x" * 4096}}, ValueError, "4096 bytes"),
        ({"record": {"a": math.nan}}, TypeError, "JSON"),
        ({"record": {"a": object()}}, TypeError, "JSON"),
        ({"record": []}, TypeError, "mapping"),
    ],
    # Without addresses of objects: all processes of a test run collect the same names.
    ids=lambda value: re.sub(" at 0x.*", "", str(value)[:40]) if isinstance(value, dict) else "",
)
def test_wrong_arguments_come_first(change: dict[str, Any], error: type[Exception], text: str) -> None:
    store = MemoryStore("arguments")
    with pytest.raises(error, match=text):
        form(store, **{**GOOD, **change})
    assert len(store._space.table) == 0
    store.close()


def test_threads_and_memory_come_back(plain_backend: Backend, no_threads_left: None) -> None:
    done: Callable[[], bool] = lambda: plain_backend.leftovers() == 0  # noqa: E731
    meet(plain_backend.open, job(8))
    assert eventually(done)
