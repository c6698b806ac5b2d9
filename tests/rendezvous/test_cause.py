"""The first error of a group that has formed is the one that all its ranks raise."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from collectives.native.errors import (
    AuthError,
    CollectiveError,
    ConfigMismatch,
    OpTimeout,
    PeerLost,
    StoreError,
    TransportUnavailable,
)
from collectives.rendezvous import Membership, first_cause
from collectives.rendezvous._checks import Unreachable
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.store import Store
from tests.rendezvous.backends import Backend
from tests.rendezvous.groups import job
from tests.rendezvous.threads import together


def formed(store: Store, size: int = 3, **options: Any) -> list[Membership]:
    """The memberships of all ranks of one group, by rank."""
    found = together([lambda rank=rank: rank.form(store) for rank in job(size, **options)])  # type: ignore[misc]
    return [outcome.value for outcome in found]


def with_dead(membership: Membership, rank: int) -> Membership:
    """The same for a group whose rank `rank` was a process that has ended."""
    program = "from collectives.rendezvous import _process; print(_process.origin())"
    ended = subprocess.check_output([sys.executable, "-c", program], text=True).strip()
    return replace(membership, origins=tuple(ended if r == rank else o for r, o in enumerate(membership.origins)))


@pytest.fixture
def store() -> Any:
    space = MemoryStore(secrets.token_hex(4))
    yield space
    space.close()


@pytest.mark.parametrize("secret", [None, b"s" * 32])
@pytest.mark.parametrize("kind", [TransportUnavailable, ConfigMismatch, AuthError])
def test_all_raise_the_first_error_and_nothing_is_left(
    plain_backend: Backend, kind: type[CollectiveError], secret: bytes | None
) -> None:
    store = plain_backend.open()
    group = formed(store, secret=secret)
    first = kind("no descriptors")
    assert first_cause(store, group[1], first, 1.0) is first
    consequence = PeerLost("rank 1 is gone", [1])
    cause = first_cause(store, group[0], consequence, 1.0)
    assert type(cause) is kind
    assert "rank 1 (" in str(cause) and "could not open its links: no descriptors" in str(cause)
    assert type(first_cause(store, group[2], PeerLost("rank 0 is gone", [0]), 1.0)) is kind
    store.close()
    assert plain_backend.leftovers() == 0


@pytest.mark.parametrize("first", [PeerLost("rank 2 is gone", [2]), OpTimeout("rank 2 is late", [2])], ids=repr)
def test_what_a_rank_has_seen_of_others_is_not_believed_by_others(store: Store, first: CollectiveError) -> None:
    group = formed(store)
    assert first_cause(store, group[1], first, 1.0) is first
    other = PeerLost("rank 1 is gone", [1])
    assert first_cause(store, group[0], other, 1.0) is other


def test_the_loss_of_a_rank_whose_process_has_ended_is_the_cause_for_all(plain_backend: Backend) -> None:
    store = plain_backend.open()
    group = formed(store, size=4)
    knows, waits = (with_dead(group[rank], 3) for rank in (0, 1))
    # Rank 0 has lost rank 3, rank 1 has lost rank 0, and rank 2, which knows of no process, has lost rank 1.
    first = PeerLost("rank 3 is gone", [3])
    assert first_cause(store, knows, first, 1.0) is first
    for membership, consequence in (
        (waits, PeerLost("rank 0 is gone", [0])),
        (group[2], PeerLost("rank 1 is gone", [1])),
    ):
        cause = first_cause(store, membership, consequence, 1.0)
        assert isinstance(cause, PeerLost) and cause.ranks == (3,)
        assert "rank 3 is gone; rank 0 (" in str(cause) and str(cause).endswith("has reported it")
    store.close()
    assert plain_backend.leftovers() == 0


def test_a_rank_that_lost_one_that_runs_names_the_one_whose_process_has_ended(store: Store) -> None:
    group = formed(store)
    cause = first_cause(store, with_dead(group[0], 2), PeerLost("rank 1 is gone", [1]), 1.0)
    assert isinstance(cause, PeerLost) and cause.ranks == (2,)
    assert "rank 2 ended while links were opened" in str(cause)


@pytest.mark.parametrize(
    "own", [ValueError("wrong"), KeyboardInterrupt(), OSError(24, "Too many open files")], ids=repr
)
def test_errors_of_a_rank_itself_stay_and_others_lose_it(store: Store, own: BaseException) -> None:
    group = formed(store)
    assert first_cause(store, group[2], own, 1.0) is own
    cause = first_cause(store, group[0], TransportUnavailable("rank 0 cannot reach rank 2"), 1.0)
    assert isinstance(cause, PeerLost) and cause.ranks == (2,)
    assert (str(own) or "KeyboardInterrupt") in str(cause)
    late = ValueError("another")
    assert first_cause(store, group[1], late, 1.0) is late


@pytest.mark.parametrize(
    "forge",
    [
        lambda scope, key: b"garbage",
        lambda scope, key: b"\0" + b'{"rank":1,"ranks":[1],"place":"p","kind":"AuthError","text":"t"}',
        lambda scope, key: scope.seal(key, {"rank": 7, "ranks": [1], "place": "p", "kind": "AuthError", "text": "t"}),
        lambda scope, key: scope.seal(key, {"rank": 1, "ranks": [7], "place": "p", "kind": "PeerLost", "text": "t"}),
        lambda scope, key: scope.seal(key, {"rank": 1}),
    ],
)
def test_what_no_rank_of_the_group_wrote_is_not_believed(store: Store, forge: Callable[[Any, str], bytes]) -> None:
    group = formed(store, secret=b"s" * 32)
    scope, session = group[0].scope, group[0].session
    key = scope.key(session, "failed")
    store.set(key, forge(scope, key))
    error = PeerLost("rank 1 is gone", [1])
    assert first_cause(store, group[0], error, 1.0) is error


def test_a_store_that_cannot_be_reached_is_the_cause(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    group = formed(store)

    def unreachable(*_: object) -> None:
        raise Unreachable("refused")

    for name in ("get", "wait", "compare_set"):
        monkeypatch.setattr(store, name, unreachable)
    cause = first_cause(store, group[0], PeerLost("rank 1 is gone", [1]), 1.0)
    assert type(cause) is StoreError and "refused" in str(cause)
    own = ValueError("wrong")
    assert first_cause(store, group[0], own, 1.0) is own


def test_a_store_that_is_closed_changes_nothing(store: Store) -> None:
    group = formed(store)
    store.close()
    error = PeerLost("rank 1 is gone", [1])
    assert first_cause(store, group[0], error, 1.0) is error
