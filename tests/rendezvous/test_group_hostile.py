"""Bytes in the store that no rank of ours wrote, and releases that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives.native.errors import AuthError, CollectiveError
from collectives.rendezvous._desk import Desk
from collectives.rendezvous._records import Hello, Scope, parse_door, parse_hello
from collectives.rendezvous.group import Membership, form
from collectives.rendezvous.memory import MemoryStore
from tests.rendezvous.groups import VERSION, Rank
from tests.rendezvous.threads import background
from tests.waiting import eventually


def test_forged_documents_are_not_believed() -> None:
    """Someone who can write to the store, but does not know the secret, cannot get a group it chose formed."""
    secret = b"s" * 32
    store, client = MemoryStore("forged"), MemoryStore("forged")
    scope = Scope("group", None, 0, secret)
    thief = Scope("group", None, 0, b"t" * 32)
    thread, outcome = background(lambda: Rank(0, 2, options={"secret": secret}).form(client))
    assert eventually(lambda: store.get(scope.door) is not None)
    door = parse_door(scope.unseal("door", store.get(scope.door) or b"")[0])
    assert door is not None
    seat = scope.key(door.session, "seat/1")
    for forge in (b"\0", b"\1" + bytes(32)):
        store.set(seat, forge + b'{"v":1}')
    store.set(seat, thief.seal(f"{door.session}/seat/1", Hello(1, 2, "n", VERSION, "p", "o", {}).document()))
    # a genuine seal, but of another key
    store.set(scope.key(door.session, "flag"), scope.seal("door", {"kind": "config", "text": "forged"}))
    thread.join(10)
    assert isinstance(outcome.error, AuthError)
    assert "forged" not in str(outcome.error)
    store.close()
    client.close()


def test_a_forged_outcome_is_not_believed() -> None:
    secret = b"s" * 32
    store = MemoryStore("outcome")
    scope, thief = Scope("group", None, 0, secret), Scope("group", None, 0, b"t" * 32)
    clients = [MemoryStore("outcome") for _ in range(2)]
    work = [
        background(lambda rank=rank: Rank(rank, 3, options={"secret": secret, "timeout": 3.0}).form(clients[rank]))  # type: ignore[misc]
        for rank in range(2)
    ]
    assert eventually(lambda: sum("seat" in key for key in list(store._space.table._values)) == 2)
    found = store.get(scope.door) or b""
    door = parse_door(scope.unseal("door", found)[0])
    assert door is not None
    document = scope.unseal("door", found)[0] or {}
    roster = [["0" * 32, {"evil": True}]] * 3
    store.set(scope.key(door.session, "go"), thief.seal("door", {**document, "state": "closed", "roster": roster}))
    for thread, outcome in work:
        thread.join(20)
        assert isinstance(outcome.error, CollectiveError)
        assert outcome.values == []
    for client in (store, *clients):
        client.close()


@settings(deadline=None)
@given(data=st.binary(max_size=200), sealed=st.booleans())
def test_no_bytes_break_the_parser(data: bytes, sealed: bool) -> None:
    scope = Scope("n", None, 0, b"s" * 32 if sealed else None)
    for prefix in (b"", b"\0", b"\1" + bytes(32), b"\0{", b'\0{"v":'):
        document, authentic = scope.unseal("door", prefix + data)
        parse_door(document)
        parse_hello(document)
        assert not (sealed and authentic)


FIELDS = ["v", "state", "session", "rank", "size", "roster", "verdict", "before"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(["v", "state", "session", "rank", "size", "roster", "verdict", "before"]), JSON
    )
)
def test_no_document_breaks_the_reader(changes: dict[str, Any]) -> None:
    store = MemoryStore("unused")
    desk = Desk(store, Scope("n", None, 0, None), 1, 3, VERSION, {}, 1, None)
    store.close()
    document = desk.scope.unseal("door", desk.door("closed", "0" * 32, roster=[["a", {}]] * 3))[0] or {}
    assert parse_door(document) is not None
    door = parse_door({**document, **changes})
    assert door is None or 0 <= door.rank < door.size
    parse_hello({"rank": 1, "size": 2, "nonce": "n", "fingerprint": "f", "place": "p", "origin": "o", **changes})


def test_a_door_of_another_version_is_a_mismatch_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side alone: a guest of another version, and a host of another version."""
    store, client = MemoryStore("versions"), MemoryStore("versions")
    thread, outcome = background(lambda: Rank(0, 2).form(client))
    scope = Scope("group", None, 0, None)
    assert eventually(lambda: store.get(scope.door) is not None)
    monkeypatch.setattr("collectives.rendezvous._guest.VERSION", 2)
    monkeypatch.setattr("collectives.rendezvous._desk.VERSION", 2)
    with pytest.raises(CollectiveError, match=r"version 2.*version 1"):
        Rank(1, 2).form(store)
    thread.join(10)
    assert "version 2" in str(outcome.error) and "version 1" in str(outcome.error)
    assert outcome.seconds < 3
    store.close()
    client.close()


def test_membership_is_a_value() -> None:
    store = MemoryStore("value")
    member = form(store, rank=0, size=1, name="n", record={}, fingerprint="f", secret=b"s" * 32)
    assert isinstance(member, Membership)
    assert "ssss" not in repr(member)
    with pytest.raises(AttributeError):
        member.rank = 1  # type: ignore[misc]
    store.close()
