"""Ranks that meet, as threads with a store client each.

Invariant: the clients are closed, and what the groups left is released, before a function here returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.rendezvous.group import Membership, form, release
from collectives.rendezvous.store import Store
from tests.rendezvous.threads import Outcome, together

VERSION = "version 1"


@dataclass(frozen=True)
class Rank:
    """One call of `form`."""

    rank: int
    size: int
    job: str = "job"
    options: Mapping[str, Any] = field(default_factory=dict)

    def form(self, store: Store) -> Membership:
        record = {"rank": self.rank, "job": self.job}
        settings = {"name": "group", "fingerprint": VERSION, "timeout": 30.0, **self.options}
        return form(store, rank=self.rank, size=self.size, record=record, **settings)


def job(size: int, label: str = "job", **options: Any) -> list[Rank]:
    """All ranks of a job."""
    return [Rank(rank, size, label, options) for rank in range(size)]


def meet(open_store: Callable[[], Store], ranks: Sequence[Rank]) -> list[Outcome[Membership]]:
    """Run all ranks at once."""

    clients = [open_store() for _ in ranks]  # connecting is not what is timed

    def run(rank: Rank, store: Store) -> Membership:
        membership = rank.form(store)
        release(store, membership)
        return membership

    try:
        return together(
            [lambda rank=rank, store=store: run(rank, store) for rank, store in zip(ranks, clients, strict=True)]  # type: ignore[misc]
        )
    finally:
        for client in clients:
            client.close()


def check_formed(outcomes: Sequence[Outcome[Membership]], ranks: Sequence[Rank]) -> None:
    """That these ranks, and no others, are one group."""
    members = [outcome.value for outcome in outcomes]
    assert len({member.run_id for member in members}) == 1
    assert len(members[0].run_id) == 16
    expected = [{"rank": rank.rank, "job": rank.job} for rank in sorted(ranks, key=lambda rank: rank.rank)]
    for member, rank in zip(members, ranks, strict=True):
        assert (member.rank, member.size) == (rank.rank, len(ranks))
        assert list(member.records) == expected
