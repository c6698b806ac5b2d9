"""Bytes in the store that no rank of ours wrote, and releases that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives.native.errors import AuthError, CollectiveError
from collectives.rendezvous._participant import Participant
from collectives.rendezvous._records import VERSION as VERSION_OF_PROTOCOL
from collectives.rendezvous._records import Hello, Scope, parse_hello, parse_notice
from collectives.rendezvous._roster import Entry, Roster
from collectives.rendezvous.group import Membership, form
from collectives.rendezvous.memory import MemoryStore
from tests.rendezvous.groups import VERSION, Rank
from tests.rendezvous.threads import background
from tests.waiting import AT_ONCE, eventually


def test_forged_documents_are_not_believed() -> None:
    """Someone who can write to the store, but does not know the secret, cannot get a group it chose formed."""
    secret = b"s" * 32
    store, client = MemoryStore("forged"), MemoryStore("forged")
    scope = Scope("group", None, 0, secret)
    thief = Scope("group", None, 0, b"t" * 32)
    thread, outcome = background(lambda: Rank(0, 2, options={"secret": secret}).form(client))
    assert eventually(lambda: store.get(scope.notice) is not None)
    notice = parse_notice(scope.unseal("notice", store.get(scope.notice) or b"")[0])
    assert notice is not None
    slot = scope.key(notice.session, "slot/1")
    for forge in (b"\0", b"\1" + bytes(32)):
        store.set(slot, forge + b'{"v":1}')
    store.set(slot, thief.seal(f"{notice.session}/slot/1", Hello(1, 2, "0" * 32, VERSION, "p", "o", {}).document()))
    # a genuine seal, but of another key
    store.set(scope.key(notice.session, "flag"), scope.seal("notice", {"kind": "config", "text": "forged"}))
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
    assert eventually(lambda: sum("slot" in key for key in list(store._space.table._values)) == 2)
    found = store.get(scope.notice) or b""
    notice = parse_notice(scope.unseal("notice", found)[0])
    assert notice is not None
    document = scope.unseal("notice", found)[0] or {}
    roster = Roster.of([Entry("0" * 32, "", {"evil": True})] * 3).data
    store.set(scope.key(notice.session, "go"), thief.seal("notice", {**document, "state": "closed", "roster": roster}))
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
        document, authentic = scope.unseal("notice", prefix + data)
        parse_notice(document)
        parse_hello(document)
        assert not (sealed and authentic)


FIELDS = ["v", "state", "session", "rank", "size", "opened", "roster", "verdict", "before"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), JSON | st.binary(max_size=80)))
def test_no_document_breaks_the_reader(changes: dict[str, Any]) -> None:
    store = MemoryStore("unused")
    participant = Participant(store, Scope("n", None, 0, None), 1, 3, VERSION, {}, 1, None)
    store.close()
    written = participant.notice("closed", "0" * 32, roster=[Entry("0" * 32, "", {})] * 3)
    document = participant.scope.unseal("notice", written)[0] or {}
    assert parse_notice(document) is not None
    notice = parse_notice({**document, **changes})
    assert notice is None or 0 <= notice.rank < notice.size
    parse_hello({"rank": 1, "size": 2, "nonce": "0" * 32, "fingerprint": "f", "place": "p", "origin": "o", **changes})


def test_a_notice_of_another_version_is_a_mismatch_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side alone: a member of another version, and a host of another version."""
    store, client = MemoryStore("versions"), MemoryStore("versions")
    thread, outcome = background(lambda: Rank(0, 2).form(client))
    scope = Scope("group", None, 0, None)
    assert eventually(lambda: store.get(scope.notice) is not None)
    monkeypatch.setattr("collectives.rendezvous._member.VERSION", 77)
    monkeypatch.setattr("collectives.rendezvous._participant.VERSION", 77)
    with pytest.raises(CollectiveError, match=rf"version 77.*version {VERSION_OF_PROTOCOL}"):
        Rank(1, 2).form(store)
    thread.join(10)
    assert "version 77" in str(outcome.error) and f"version {VERSION_OF_PROTOCOL}" in str(outcome.error)
    assert outcome.seconds < AT_ONCE
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
