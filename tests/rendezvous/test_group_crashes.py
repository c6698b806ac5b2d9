"""What dead, slow and hostile processes leave behind or do meanwhile: groups form all the same."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collectives.native.errors import OpTimeout, StoreError
from collectives.rendezvous import _process
from collectives.rendezvous._participant import Participant, session_keys
from collectives.rendezvous._records import Scope, parse_hello
from collectives.rendezvous._roster import Entry
from collectives.rendezvous.file import FileStore
from collectives.rendezvous.group import release
from collectives.rendezvous.memory import MemoryStore
from collectives.rendezvous.redis import RedisStore
from collectives.rendezvous.store import Store
from tests.rendezvous.backends import Backend
from tests.rendezvous.groups import VERSION, Hooked, Rank, check_formed, job, meet
from tests.rendezvous.processes import python
from tests.rendezvous.threads import background
from tests.waiting import AT_ONCE, eventually

CHILD = """
import sys, threading
from collectives.rendezvous import open_store
from collectives.rendezvous.group import form, release
url, size, ranks, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4])
def run(rank):
    store = open_store(url)
    for _ in range(rounds):
        record = {"rank": rank, "job": "dead"}
        member = form(store, rank=rank, size=size, name="group", record=record, fingerprint="version 1", timeout=60)
        release(store, member)
threads = [threading.Thread(target=run, args=(int(rank),), daemon=True) for rank in ranks]
for thread in threads: thread.start()
print("up", flush=True)
for thread in threads: thread.join()
"""


# -- earlier runs


def next_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, this process is one that has just started."""
    started = _process.now()
    monkeypatch.setattr(_process, "born", lambda: started)


@pytest.mark.parametrize("kind", ["file", "redis"])
@pytest.mark.parametrize("ranks", ["0", "1,2", "0,1,2"])
def test_a_run_killed_while_joining_does_no_harm(
    kind: str, ranks: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "file":
        url = (tmp_path / "store").as_uri()
        open_store: Callable[[], Store] = lambda: FileStore(tmp_path / "store")  # noqa: E731
    else:
        server = request.getfixturevalue("redis_plain")
        url = server.url
        client = server.client()
        client.flushall()
        client.close()
        open_store = lambda: RedisStore("127.0.0.1", server.port)  # noqa: E731
    for _ in range(2):
        child = python(CHILD, url, "4", ranks, "1")
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        store = open_store()
        scope = Scope("group", None, 0, None)
        assert eventually(lambda: store.get(scope.notice) is not None, 30)  # noqa: B023
        store.close()
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=30)
        next_run_starts(monkeypatch)
        four = job(4)
        outcomes = meet(open_store, four)
        check_formed(outcomes, four)
        assert max(outcome.seconds for outcome in outcomes) < AT_ONCE


def test_runs_killed_at_any_moment_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = (tmp_path / "store").as_uri()
    for turn in range(6):
        child = python(CHILD, url, "3", "0,1,2", "1000")
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        time.sleep(0.04 * turn)  # the moment is what varies
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=30)
        next_run_starts(monkeypatch)
        ranks = job(2)  # a job of another size, at that
        check_formed(meet(lambda: FileStore(tmp_path / "store"), ranks), ranks)
    left = [name for name in os.listdir(tmp_path / "store") if name.startswith("k.")]
    assert left == []


def stale_notice(
    name: str, state: str, *, size: int = 3, secret: bytes | None = None, fingerprint: str = VERSION
) -> tuple[Scope, str, bytes]:
    """A notice as a process of another machine, of which nothing is known, may have left it."""
    scope = Scope(name, None, 0, None)
    participant = Participant(MemoryStore("unused"), Scope(name, None, 0, secret), 0, size, fingerprint, {}, 1, None)
    participant.me = parse_hello({**participant.me.document(), "origin": "", "place": "elsewhere:1"}) or participant.me
    participant.store.close()
    session = secrets.token_hex(16)
    verdict = {"kind": "config", "text": "something that was wrong then"} if state == "failed" else None
    roster = [Entry("0" * 32, "", {"job": "dead"}) for _ in range(size)] if state == "closed" else None
    return scope, session, participant.notice(state, session, roster=roster, verdict=verdict)


def meet_in_each(store: str, names: list[str]) -> float:
    """Groups of three under all these names at once; the seconds that the slowest rank took."""
    ranks = [rank for name in names for rank in job(3, name, name=name)]
    outcomes = meet(lambda: MemoryStore(store), ranks)
    for start in range(0, len(ranks), 3):
        check_formed(outcomes[start : start + 3], ranks[start : start + 3])
    return max(outcome.seconds for outcome in outcomes)


def test_what_another_machine_left_does_no_harm() -> None:
    """In every state, of jobs like this one and others, with all keys a session can have."""
    store = MemoryStore("stale")
    others: list[dict[str, Any]] = [{}, {"size": 5}, {"fingerprint": "old"}, {"secret": b"o" * 32}]
    names = []
    for state in ("open", "closed", "failed"):
        for number, other in enumerate(others):
            names.append(f"{state} {number}")
            scope, session, notice = stale_notice(names[-1], state, **other)
            store.set(scope.notice, notice)
            for key in session_keys(scope, session, other.get("size", 3)):
                if not key.endswith("go") or state != "open":
                    store.set(key, notice if key.endswith("go") else b"1" if key.endswith("left") else b"\0{}")
    assert meet_in_each("stale", names) < 8
    assert store._space.table._values == {}
    store.close()


def test_garbage_at_the_notice_does_no_harm() -> None:
    garbage = [b"", b"\0", b"\1" * 50, b"\0{", b"\0[]", b"\0{}", b"\0" + b"[" * 100_000, bytes(range(256))]
    store = MemoryStore("garbage")
    for number, value in enumerate(garbage):
        store.set(Scope(str(number), None, 0, None).notice, value)
    assert meet_in_each("garbage", [str(number) for number in range(len(garbage))]) < 5
    assert store._space.table._values == {}
    store.close()


# -- hosts that die or stall


def test_a_host_killed_while_others_wait_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "is_gone", lambda process: False)  # as if it were on another machine
    url = (tmp_path / "store").as_uri()
    child = python(CHILD, url, "4", "0", "1")
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    stores = [FileStore(tmp_path / "store") for _ in range(4)]
    notice = Scope("group", None, 0, None).notice
    assert eventually(lambda: stores[0].get(notice) is not None, 30)
    early = [background(lambda rank=rank: Rank(rank, 4).form(stores[rank])) for rank in (1, 2)]  # type: ignore[misc]
    with pytest.raises(OpTimeout):
        stores[0].wait(["nothing"], 0.3)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)
    late = [background(lambda rank=rank: Rank(rank, 4).form(stores[rank])) for rank in (0, 3)]  # type: ignore[misc]
    members = []
    for thread, outcome in early + late:
        thread.join(20)
        members.append(outcome.value)
    assert len({member.run_id for member in members}) == 1
    assert all(record["job"] == "job" for record in members[0].records)
    for store in stores:
        store.close()
    assert [name for name in os.listdir(tmp_path / "store") if name[0] == "k"] == []


@pytest.mark.parametrize("moment", ["wait", "set", "compare_set"])
def test_a_host_that_stalls_is_replaced_and_joins_later(moment: str) -> None:
    """Rank 0 opens the notice, then sleeps in one of its calls until long after another one took over."""
    stalled = threading.Event()
    go_on = threading.Event()
    calls: list[str] = []

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        calls.append(name)
        commits = name != "compare_set" or (len(arguments) > 1 and arguments[1] is not None)
        if name == moment and commits and not stalled.is_set():
            stalled.set()
            assert go_on.wait(30)

    inner = MemoryStore("stall")
    slow = Hooked(inner, before)
    options = {"timeout": 40.0, "run_id": "r"}
    thread, outcome = background(lambda: Rank(0, 3, options=options).form(slow))
    others = [MemoryStore("stall") for _ in range(2)]
    notice = Scope("group", "r", 0, None).notice
    assert eventually(lambda: inner.get(notice) is not None, 10)  # else another one would be the host
    if moment != "compare_set":
        assert stalled.wait(10)
    rest = [
        background(lambda rank=rank: Rank(rank, 3, options=options).form(others[rank - 1]))  # type: ignore[misc]
        for rank in (1, 2)
    ]
    assert stalled.wait(10)  # the commit needs all of them
    first = inner.get(notice)
    assert eventually(lambda: inner.get(notice) != first, 20)
    go_on.set()
    for waiting, _ in [(thread, outcome), *rest]:
        waiting.join(30)
    assert len({result.value.run_id for result in (outcome, *(result for _, result in rest))}) == 1
    assert inner._space.table._values == {}
    for store in (inner, *others):
        store.close()


def test_hosts_taken_for_dead_all_the_time_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes its time, and everybody is far too impatient: sessions are replaced again and again."""
    monkeypatch.setattr("collectives.rendezvous._member.PATIENCE", 0.004)
    monkeypatch.setattr("collectives.rendezvous._participant.HeartbeatMonitor.QUIET", 1)
    monkeypatch.setattr("collectives.rendezvous._member.SLICE", 0.005)
    taken_over = 0

    def slow(seed: int) -> Store:
        dice = random.Random(seed)

        def before(name: str, arguments: tuple[Any, ...]) -> None:
            nonlocal taken_over
            taken_over += name == "compare_set" and str(arguments[0]).endswith("notice") and arguments[1] is not None
            time.sleep(dice.random() ** 4 * 0.02)

        return Hooked(inner, before)

    rounds = 6
    for seed in range(rounds):
        inner = MemoryStore("impatient")
        numbers = iter(range(seed * 100, seed * 100 + 5))
        ranks = job(5, run_id="r")
        check_formed(meet(lambda: slow(next(numbers)), ranks), ranks)  # noqa: B023
        assert inner._space.table._values == {}
        inner.close()
    assert taken_over > 3 * rounds  # two of each round are the commit and the last removal


def test_a_host_that_dies_after_closing_the_notice_has_formed_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The roster is at the notice, but nobody was told: members find it there."""

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "set" and str(arguments[0]).endswith("/go"):
            raise StoreError("died here")

    inner = MemoryStore("dies")
    others = [MemoryStore("dies") for _ in range(2)]
    options = {"run_id": "r"}
    thread, outcome = background(lambda: Rank(0, 3, options=options).form(Hooked(inner, before)))
    notice = Scope("group", "r", 0, None).notice
    assert eventually(lambda: inner.get(notice) is not None)
    rest = [
        background(lambda rank=rank: Rank(rank, 3, options=options).form(others[rank - 1]))  # type: ignore[misc]
        for rank in (1, 2)
    ]
    thread.join(10)
    assert isinstance(outcome.error, StoreError)
    members = []
    for waiting, result in rest:
        waiting.join(20)
        members.append(result.value)
    assert members[0].run_id == members[1].run_id
    release(others[0], members[0], 0.2)
    assert inner._space.table._values == {}
    for store in (inner, *others):
        store.close()


def test_what_a_member_that_died_left_is_released(plain_backend: Backend) -> None:
    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "add":
            raise StoreError("died before it had read the roster")

    stores = [plain_backend.open() for _ in range(3)]
    clients: list[Store] = [stores[0], stores[1], Hooked(stores[2], before)]
    work = [
        background(lambda rank=rank: Rank(rank, 3).form(clients[rank]))  # type: ignore[misc]
        for rank in range(3)
    ]
    members = []
    for thread, outcome in work:
        thread.join(20)
        members.append(outcome.value)
    assert plain_backend.leftovers() > 0
    start = time.monotonic()
    for _ in range(2):
        release(stores[1], members[1], 0.3)
    assert time.monotonic() - start < AT_ONCE
    assert plain_backend.leftovers() == 0
    ranks = job(3)
    check_formed(meet(plain_backend.open, ranks), ranks)
    for store in stores:
        store.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupted_rank_leaves_nothing(rank: int) -> None:
    """As by Ctrl-C while it waits, as host and as member."""
    waits = 0

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal waits
        waits += name == "wait"
        if name == "wait" and waits == 2:
            raise KeyboardInterrupt

    inner = MemoryStore("interrupt")
    if rank:
        other = MemoryStore("interrupt")
        thread, outcome = background(lambda: Rank(0, 3, options={"timeout": 3.0}).form(other))
        assert eventually(lambda: len(inner._space.table) > 0)
    with pytest.raises(KeyboardInterrupt):
        Rank(rank, 3).form(Hooked(inner, before))
    if rank:
        thread.join(20)
        assert isinstance(outcome.error, OpTimeout)  # as if it had never come
        assert outcome.error.late == (1, 2)
        other.close()
    assert len(inner._space.table) == 0
    inner.close()
