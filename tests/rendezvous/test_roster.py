"""The roster that ranks fetch: its encoding, who may have written it, and what a rank spends on it as groups grow."""

from __future__ import annotations

import contextlib
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.bench.meeting_turns import Counted
from collectives.native.errors import AuthError, CollectiveError, OpTimeout, StoreError
from collectives.rendezvous import _leader, _participant
from collectives.rendezvous._leader import BEAT
from collectives.rendezvous._member import SLICE
from collectives.rendezvous._participant import BATCH
from collectives.rendezvous._records import Scope
from collectives.rendezvous._roster import PART, Entry, Roster
from collectives.rendezvous.group import Membership, form
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.store import Store
from collectives.rendezvous.tcp import TcpStore
from tests.rendezvous.groups import VERSION, Rank, job
from tests.rendezvous.threads import Outcome, together

SECRET = b"s" * 32


def entries(size: int) -> list[Entry]:
    return [Entry(secrets.token_hex(16), f"origin {rank}", {"rank": rank, "text": "ä\n"}) for rank in range(size)]


@pytest.mark.parametrize("size", [1, PART - 1, PART, PART + 1, 3 * PART + 5])
def test_what_is_encoded_is_read_again(size: int) -> None:
    written = entries(size)
    found = Roster.parse(Roster.of(written).data, size)
    assert found is not None and found.check()
    assert list(found) == written and len(found) == size
    assert [found.nonce(rank) for rank in range(size)] == [entry.nonce for entry in written]
    assert found[-1] == written[-1] and list(found[:2]) == written[:2]
    with pytest.raises(IndexError):
        found[size]
    assert Roster.parse(found.data, size + 1) is None
    assert Roster.parse(found.data[:-1], size) is None and Roster.parse(found.data + b"x", size) is None


@settings(deadline=None)
@given(where=st.floats(0, 1), value=st.integers(1, 255))
def test_damaged_bytes_are_an_error_or_no_roster(where: float, value: int) -> None:
    """Without a secret nothing else shows that bytes changed: reading them does nothing but raise StoreError."""
    data = bytearray(Roster.of(entries(PART + 2)).data)
    data[int(where * (len(data) - 1))] ^= value
    found = Roster.parse(bytes(data), PART + 2)
    if found is not None and found.check():
        assert len(list(found)) == PART + 2


def test_a_part_that_unpacks_to_too_much_is_refused() -> None:
    bomb = zlib.compress(b'["' + b"x" * (1 << 22) + b'"]')
    found = Roster.parse(bytes(16) + len(bomb).to_bytes(4, "big") + bomb, 1)
    assert found is not None and not found.check()
    with pytest.raises(StoreError, match="malformed from rank 0"):
        found[0]


class Changed(MemoryStore):
    """A store whose values of the key `go` and the notice somebody changes on the way to one rank."""

    def __init__(self, name: str, change: Callable[[bytes], bytes]) -> None:
        super().__init__(name)
        self._change = change
        self.seen: list[bytes] = []

    def _changed(self, key: str, value: bytes) -> bytes:
        if not key.endswith(("/go", "/notice")) or b'"closed"' not in value:
            return value
        self.seen.append(value)
        return self._change(value)

    def get(self, key: str, timeout: float = 30.0) -> bytes | None:
        value = super().get(key, timeout)
        return None if value is None else self._changed(key, value)

    def wait(self, keys: Sequence[str], timeout: float = 30.0) -> list[bytes]:
        return [self._changed(key, value) for key, value in zip(keys, super().wait(keys, timeout), strict=True)]


def met(
    change: Callable[[bytes], bytes], label: str, size: int = 3, **options: Any
) -> tuple[list[Outcome[Membership]], Changed]:
    """Ranks meet; the store of the last one, which does not lead, is a `Changed`."""
    name = f"changed-{label}-{secrets.token_hex(4)}"
    ranks = job(size, secret=SECRET, run_id="run", timeout=5.0, **options)
    changed = Changed(name, change)
    stores: list[Store] = [*(MemoryStore(name) for _ in range(size - 1)), changed]

    def one(rank: Rank, store: Store) -> Membership:
        if rank.rank == size - 1:  # another rank leads
            while not any(key.endswith("/notice") for key in list(changed._space.table._values)):
                time.sleep(0.001)
        return rank.form(store)

    try:
        return together(
            [lambda rank=rank, store=store: one(rank, store) for rank, store in zip(ranks, stores, strict=True)]  # type: ignore[misc]
        ), changed
    finally:
        for store in stores:
            store.close()


@pytest.mark.parametrize("place", ["first", "nonce", "record", "last"])
def test_a_roster_with_one_changed_byte_is_refused(place: str) -> None:
    def change(value: bytes) -> bytes:
        found = bytearray(value)
        line = value.index(b"\n", 33)
        at = {"first": 33, "nonce": line + 1, "record": line + 3 * 16 + 4 + 10, "last": len(value) - 1}[place]
        found[at] ^= 1
        return bytes(found)

    outcomes, changed = met(change, place)
    assert changed.seen
    assert isinstance(outcomes[2].error, AuthError), outcomes[2].error
    assert [outcome.values[0].rank for outcome in outcomes[:2]] == [0, 1]


@pytest.mark.parametrize("which", ["session", "epoch", "job", "secret"])
def test_a_genuine_roster_of_another_group_is_refused(which: str) -> None:
    """It is signed with the right secret for an earlier session, or for another job, epoch or secret."""
    first, earlier = met(lambda value: value, "earlier")
    assert all(outcome.error is None for outcome in first) and earlier.seen
    value = earlier.seen[0]

    def change(current: bytes) -> bytes:
        document, authentic = Scope("group", "run", 0, SECRET).unseal("notice", current)
        assert authentic and document is not None
        if which == "session":
            return value
        scope = {
            "epoch": Scope("group", "run", 1, SECRET),
            "job": Scope("other", "run", 0, SECRET),
            "secret": Scope("group", "run", 0, b"t" * 32),
        }[which]
        return scope.seal("notice", document)

    outcomes, changed = met(change, which)
    assert changed.seen
    assert isinstance(outcomes[2].error, AuthError), outcomes[2].error
    assert outcomes[2].values == []


@contextlib.contextmanager
def served(size: int) -> Iterator[list[Counted]]:
    """A tcp store's clients of `size` ranks; rank 0 serves it."""
    first = TcpStore.serve("127.0.0.1", 0, secret=SECRET)
    port = int(first.url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        stack.callback(first.close)
        others = [TcpStore("127.0.0.1", port, secret=SECRET) for _ in range(size - 1)]
        for store in others:
            stack.callback(store.close)
        yield [Counted(store) for store in (first, *others)]


def record(rank: int) -> dict[str, Any]:
    """As long as that of `init`."""
    token = secrets.token_hex(16)
    host = {
        "host": "node",
        "boot": "741f8911-dfb3-4d32-86a7-3e536bd18290",
        "pid": rank,
        "cookie": token,
        "proof": token,
    }
    return {"host": host, "addresses": {"shm": [token], "tcp": [f"10.0.0.{n} {20000 + rank}" for n in range(3)]}}


def test_what_a_rank_spends_does_not_grow_with_the_group() -> None:
    """256 ranks as threads: each has all addresses right; its requests are as few as among 16."""
    for size in (16, 256):
        records = [record(rank) for rank in range(size)]
        options = {"name": "many", "fingerprint": VERSION, "run_id": "r", "secret": SECRET, "timeout": 60.0}

        def one(rank: int, store: Store, records: Any = records, options: Any = options) -> Membership:
            return form(store, rank=rank, size=len(records), record=records[rank], **options)

        with served(size) as stores:
            outcomes = together(
                [lambda rank=rank, store=store: one(rank, store) for rank, store in enumerate(stores)]  # type: ignore[misc]
            )
            members = [outcome.value for outcome in outcomes]
            assert all(member.records == records for member in members[:: size // 16])
            assert {member.run_id for member in members} == {members[0].run_id}
            assert all(member.roster is members[0].roster for member in members)  # threads keep one copy
            assert len(members[0].roster.data) < 150 * size
            leader = members[0].leader
            for rank, (store, outcome) in enumerate(zip(stores, outcomes, strict=True)):
                # While a rank waits, it looks at the leader, which beats; both depend on time and not on the size.
                looks = outcome.seconds / SLICE + 1
                if rank == leader:
                    assert store.requests <= 10 + 2 * size / BATCH + 2 * BATCH + 6 * outcome.seconds / BEAT
                else:
                    assert store.requests <= 8 + 3 * looks, (rank, outcome.seconds)
                    assert store.received <= (3 + looks) * (150 * size + 2000)


def test_slots_are_awaited_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of two: a group forms, and a missing rank is named by all others."""
    monkeypatch.setattr(_participant, "BATCH", 2)
    monkeypatch.setattr(_leader, "BATCH", 2)
    for missing in (None, 3):
        ranks = [rank for rank in job(7, run_id="r", timeout=1.0 if missing else 30.0) if rank.rank != missing]
        stores = [MemoryStore(f"batches-{missing}") for _ in ranks]
        outcomes = together(
            [lambda rank=rank, store=store: rank.form(store) for rank, store in zip(ranks, stores, strict=True)]  # type: ignore[misc]
        )
        for store in stores:
            store.close()
        for outcome in outcomes:
            if missing is None:
                assert [entry["rank"] for entry in outcome.value.records] == list(range(7))
            else:
                assert isinstance(outcome.error, OpTimeout) and list(outcome.error.late) == [missing]


def test_without_a_secret_a_malformed_roster_is_an_error() -> None:
    def change(value: bytes) -> bytes:
        return value[:-3] + b"xyz"

    name = f"plain-{secrets.token_hex(4)}"
    changed = Changed(name, change)
    stores: list[Store] = [MemoryStore(name), changed]
    ranks = job(2, run_id="run", timeout=5.0)

    def one(rank: Rank, store: Store) -> Membership:
        while rank.rank == 1 and not any(key.endswith("/notice") for key in list(changed._space.table._values)):
            time.sleep(0.001)
        return rank.form(store)

    outcomes = together(
        [lambda rank=rank, store=store: one(rank, store) for rank, store in zip(ranks, stores, strict=True)]  # type: ignore[misc]
    )
    for store in stores:
        store.close()
    assert isinstance(outcomes[1].error, CollectiveError) and outcomes[1].values == []
