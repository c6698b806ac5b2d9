"""Ranks that do not fit together: everyone who is there gets the same clear error, soon."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from collectives.native.errors import AuthError, CollectiveError, ConfigMismatch, OpTimeout
from collectives.rendezvous.group import Membership
from tests.rendezvous.backends import Backend
from tests.rendezvous.groups import Rank, check_formed, find_notice, job, meet, until_there
from tests.rendezvous.processes import python
from tests.rendezvous.threads import Outcome, background
from tests.waiting import AT_ONCE, eventually

SOON = AT_ONCE


def check_all_fail(outcomes: Sequence[Outcome[Membership]], error: type[CollectiveError], pattern: str) -> None:
    for outcome in outcomes:
        assert isinstance(outcome.error, error), (outcome.error, outcome.values)
        assert re.search(pattern, str(outcome.error)), outcome.error
        assert outcome.seconds < SOON


DUPLICATES = [
    ((0, 0, 1), 3, 0),
    ((0, 1, 1), 3, 1),
    ((0, 1, 1, 2), 3, 1),
    ((1, 1), 3, 1),
    ((0, 0), 2, 0),
    ((3, 2, 1, 0, 2), 5, 2),
]


@pytest.mark.parametrize(("numbers", "size", "twice"), DUPLICATES)
def test_duplicate_ranks(memory_backend: Backend, numbers: tuple[int, ...], size: int, twice: int) -> None:
    outcomes = meet(memory_backend.open, [Rank(number, size) for number in numbers], all_there=True)
    check_all_fail(outcomes, ConfigMismatch, rf"rank {twice}\b.*(started twice|another process)")
    assert memory_backend.leftovers() == 0


def test_a_duplicate_also_ends_those_who_came_before(plain_backend: Backend) -> None:
    stores = [plain_backend.open() for _ in range(3)]
    early = [background(lambda rank=rank: Rank(rank, 4).form(stores[rank])) for rank in range(2)]  # type: ignore[misc]
    until_there(stores[2], 0, 1)
    start = time.monotonic()
    with pytest.raises(ConfigMismatch, match="rank 1 was started twice"):
        Rank(1, 4).form(stores[2])
    for thread, outcome in early:
        thread.join(10)
        assert isinstance(outcome.error, ConfigMismatch)
    assert time.monotonic() - start < SOON
    assert plain_backend.leftovers() == 0
    for store in stores:
        store.close()


def test_a_late_rank_hears_why_the_others_failed(plain_backend: Backend) -> None:
    stores = [plain_backend.open() for _ in range(3)]
    early = [background(lambda store=store: Rank(0, 3).form(store)) for store in stores[:2]]  # type: ignore[misc]
    assert eventually(lambda: (notice := find_notice(stores[2])) is not None and notice.state == "failed")
    start = time.monotonic()
    with pytest.raises(ConfigMismatch, match="rank 0 was started twice"):
        Rank(2, 3).form(stores[2])
    assert time.monotonic() - start < SOON
    for thread, _ in early:
        thread.join(10)
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    "pairs",
    [((0, 2), (1, 3)), ((0, 3), (1, 2)), ((0, 2), (2, 3)), ((0, 4), (1, 4), (2, 4), (3, 5)), ((0, 1), (1, 2))],
    ids=str,
)
def test_different_sizes(memory_backend: Backend, pairs: tuple[tuple[int, int], ...]) -> None:
    # settling, or the smaller group could be complete and gone before the others have come
    ranks = [Rank(rank, size, options={"settle": 20.0}) for rank, size in pairs]
    outcomes = meet(memory_backend.open, ranks, all_there=True)
    check_all_fail(outcomes, ConfigMismatch, r"size \d on rank.*; size \d on rank")
    assert memory_backend.leftovers() == 0


def test_different_sizes_on_every_store(plain_backend: Backend) -> None:
    outcomes = meet(plain_backend.open, [Rank(0, 3), Rank(1, 3), Rank(2, 4)], all_there=True)
    check_all_fail(outcomes, ConfigMismatch, r"size 3 on rank.*size 4 on rank 2|size 4 on.*size 3 on")
    assert plain_backend.leftovers() == 0


def test_different_configurations_name_ranks_and_values(plain_backend: Backend) -> None:
    ranks = [Rank(rank, 4, options={"fingerprint": "ring, v1" if rank != 2 else "tree, v2"}) for rank in range(4)]
    outcomes = meet(plain_backend.open, ranks, all_there=True)
    check_all_fail(outcomes, ConfigMismatch, "'ring, v1' on rank")
    check_all_fail(outcomes, ConfigMismatch, "'tree, v2' on rank")
    assert plain_backend.leftovers() == 0


def test_an_incomplete_group_notices_different_configurations_too(memory_backend: Backend) -> None:
    ranks = [Rank(0, 9, options={"fingerprint": "a"}), Rank(1, 9, options={"fingerprint": "b"})]
    outcomes = meet(memory_backend.open, ranks, all_there=True)
    check_all_fail(outcomes, ConfigMismatch, "'a' on rank 0; 'b' on rank 1|'b' on rank 1; 'a' on")


@pytest.mark.parametrize(
    "secrets", [(b"s" * 32, b"t" * 32), (b"s" * 32, None), (None, b"s" * 32)], ids=["two", "0", "1"]
)
def test_different_secrets(plain_backend: Backend, secrets: tuple[bytes | None, bytes | None]) -> None:
    ranks = [Rank(rank, 3, options={"secret": secrets[rank == 2]}) for rank in range(3)]
    outcomes = meet(plain_backend.open, ranks, all_there=True)
    check_all_fail(outcomes, AuthError, "secret")
    for outcome in outcomes:
        assert "ssss" not in str(outcome.error) and "7373" not in str(outcome.error)
    assert plain_backend.leftovers() == 0


def test_who_does_not_know_the_secret_cannot_stop_those_who_do(
    plain_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intruder takes a slot, once the host is there; the group forms without it."""
    for module in ("_leader", "_member"):  # the others may take as long as they need
        monkeypatch.setattr(f"collectives.rendezvous.{module}.AUTH_GRACE", 20.0)
    good: dict[str, Any] = {"secret": b"s" * 32}
    stores = [plain_backend.open() for _ in range(4)]
    host, hosted = background(lambda: Rank(0, 3, options=good).form(stores[0]))
    until_there(stores[2], 0, secret=good["secret"])
    intruder, intruded = background(lambda: Rank(1, 3, "evil", {"secret": b"t" * 32}).form(stores[3]))
    until_there(stores[2], 1, secret=good["secret"])
    others = [background(lambda rank=rank: Rank(rank, 3, options=good).form(stores[rank])) for rank in (1, 2)]  # type: ignore[misc]
    for thread in (host, intruder, *(thread for thread, _ in others)):
        thread.join(20)
    check_formed([hosted, *(outcome for _, outcome in others)], job(3))
    assert isinstance(intruded.error, AuthError)
    assert intruded.seconds < SOON
    for store in stores:
        store.close()


@pytest.mark.parametrize(("present", "size"), [((5,), 8), ((0, 7, 3), 8)], ids=str)
def test_missing_ranks_are_listed_on_every_rank(plain_backend: Backend, present: tuple[int, ...], size: int) -> None:
    missing = tuple(rank for rank in range(size) if rank not in present)
    ranks = [Rank(rank, size, options={"timeout": 0.7}) for rank in present]
    outcomes = meet(plain_backend.open, ranks, all_there=True)
    for outcome in outcomes:
        assert isinstance(outcome.error, OpTimeout)
        assert outcome.error.late == missing
        assert 0.5 < outcome.seconds < 0.7 + SOON
    text = str(outcomes[0].error)
    for rank in (missing[0], missing[-1]):
        assert str(rank) in text
    assert plain_backend.leftovers() == 0


def test_the_first_deadline_ends_it_for_all_with_one_list(plain_backend: Backend) -> None:
    ranks = [Rank(rank, 4, options={"timeout": timeout}) for rank, timeout in ((0, 60.0), (1, 0.8), (2, 60.0))]
    outcomes = meet(plain_backend.open, ranks, all_there=True)
    for outcome in outcomes:
        assert isinstance(outcome.error, OpTimeout)
        assert outcome.error.late == (3,)
        assert outcome.seconds < 0.8 + SOON
    assert plain_backend.leftovers() == 0


def test_a_deadline_of_zero(plain_backend: Backend) -> None:
    [outcome] = meet(plain_backend.open, [Rank(0, 2, options={"timeout": 0})])
    assert isinstance(outcome.error, OpTimeout)
    assert outcome.error.late == (1,)
    assert plain_backend.leftovers() == 0


# -- two jobs with one name


def test_two_jobs_with_run_ids_are_isolated(plain_backend: Backend) -> None:
    first, second = job(6, "a", run_id="a"), job(6, "b", run_id="b")
    mixed = [rank for pair in zip(first, second, strict=True) for rank in pair]
    outcomes = meet(plain_backend.open, mixed)
    check_formed(outcomes[::2], first)
    check_formed(outcomes[1::2], second)
    assert plain_backend.leftovers() == 0


@pytest.mark.parametrize("turn", range(4))
def test_two_jobs_without_run_ids_never_mix(plain_backend: Backend, turn: int) -> None:
    size = 2 + turn
    first, second = job(size, "a"), job(size, "b")
    ranks = [rank for pair in zip(first, second if turn % 2 else second[::-1], strict=True) for rank in pair]
    outcomes = meet(plain_backend.open, ranks)
    for rank, outcome in zip(ranks, outcomes, strict=True):
        if outcome.error is None:
            assert {record["job"] for record in outcome.value.records} == {rank.job}
        else:
            assert isinstance(outcome.error, ConfigMismatch)
            assert outcome.seconds < SOON
    assert plain_backend.leftovers() == 0


def test_two_jobs_of_processes_without_run_ids_never_mix(tmp_path: Path) -> None:
    code = """
import sys, time
from collectives.native.errors import ConfigMismatch
from collectives.rendezvous import open_store
from collectives.rendezvous.group import form, release
store = open_store(sys.argv[1])
print("up", flush=True)
sys.stdin.readline()
start = time.monotonic()
try:
    record = {"job": sys.argv[3]}
    member = form(store, rank=int(sys.argv[2]), size=2, name="n", record=record, fingerprint="f", timeout=20)
    release(store, member)
    print(*[record["job"] for record in member.records], flush=True)
except ConfigMismatch:
    print("mismatch", time.monotonic() - start < 10, flush=True)
store.close()
"""
    url = (tmp_path / "store").as_uri()
    ranks = [("0", "a"), ("1", "b"), ("0", "b"), ("1", "a")]
    workers = [python(code, url, *rank) for rank in ranks]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "up\n"
    message = []
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    for worker in workers:
        message.append(worker.communicate(timeout=60)[0].strip())
    for (_, name), line in zip(ranks, message, strict=True):
        assert line in (f"{name} {name}", "mismatch True"), message
