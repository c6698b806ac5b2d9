"""Ranks that meet, as threads with a store client each.

Invariant: the clients are closed, and what the groups left is released, before a function here returns.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.rendezvous._participant import slot
from collectives.rendezvous._records import Notice, Scope, parse_notice
from collectives.rendezvous.group import Membership, form, release
from collectives.rendezvous.prefix import PrefixStore
from collectives.rendezvous.store import Store
from tests.rendezvous.threads import Outcome, together
from tests.waiting import eventually

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


class Hooked(PrefixStore):
    """A store that runs `before` ahead of each call."""

    def __init__(self, store: Store, before: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__(store, "h")
        self._before = before
        for name in ("get", "set", "wait", "add", "compare_set", "delete"):
            setattr(self, name, self._hook(name, getattr(store, name)))

    def _hook(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*arguments: Any) -> Any:
            self._before(name, arguments)
            return call(*arguments)

        return hooked


class Arrivals:
    """Lets none of `size` ranks go on before all have arrived in the session, or one has failed."""

    def __init__(self, size: int) -> None:
        self._gate = threading.Barrier(size)

    def of(self, store: Store) -> Store:
        """The store that one rank uses."""
        passed = False

        def before(name: str, arguments: tuple[Any, ...]) -> None:
            nonlocal passed
            if name == "wait" and not passed:  # the first one: this rank has taken its slot, or has objected
                passed = True
                with contextlib.suppress(threading.BrokenBarrierError):
                    self._gate.wait(30.0)

        return Hooked(store, before)

    def end(self) -> None:
        """One rank has formed the group, or has failed."""
        self._gate.abort()


def meet(
    open_store: Callable[[], Store], ranks: Sequence[Rank], *, all_there: bool = False
) -> list[Outcome[Membership]]:
    """Run all ranks at once. `all_there`: with `Arrivals`, since a rank that comes long after an error hears none."""
    arrivals = Arrivals(len(ranks))
    clients = [open_store() for _ in ranks]  # connecting is not what is timed

    def run(rank: Rank, store: Store) -> Membership:
        try:
            membership = rank.form(arrivals.of(store) if all_there else store)
        finally:
            arrivals.end()
        release(store, membership)
        return membership

    try:
        return together(
            [lambda rank=rank, store=store: run(rank, store) for rank, store in zip(ranks, clients, strict=True)]  # type: ignore[misc]
        )
    finally:
        for client in clients:
            client.close()


def find_notice(store: Store, secret: bytes | None = None) -> Notice | None:
    """The notice of `Rank.form`'s group that is in the store."""
    scope = Scope("group", None, 0, secret)
    return parse_notice(scope.unseal("notice", store.get(scope.notice) or b"")[0])


def until_there(store: Store, *ranks: int, secret: bytes | None = None) -> None:
    """Wait until these slots of the current session are in use."""
    scope = Scope("group", None, 0, secret)

    def there() -> bool:
        notice = find_notice(store, secret)
        return notice is not None and all(
            store.get(scope.key(notice.session, slot(rank))) is not None for rank in ranks
        )

    assert eventually(there), f"ranks {ranks} did not arrive"


def check_formed(outcomes: Sequence[Outcome[Membership]], ranks: Sequence[Rank]) -> None:
    """That these ranks, and no others, are one group."""
    members = [outcome.value for outcome in outcomes]
    assert len({member.run_id for member in members}) == 1
    assert len(members[0].run_id) == 16
    expected = [{"rank": rank.rank, "job": rank.job} for rank in sorted(ranks, key=lambda rank: rank.rank)]
    for member, rank in zip(members, ranks, strict=True):
        assert (member.rank, member.size) == (rank.rank, len(ranks))
        assert list(member.records) == expected
