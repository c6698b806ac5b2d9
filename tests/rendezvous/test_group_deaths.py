"""A rank that ends, or falls silent, while the group forms: the others raise PeerLost, which names it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectives.native.errors import OpTimeout, PeerLost
from collectives.rendezvous import Membership, _process, exchange
from collectives.rendezvous._participant import slot
from collectives.rendezvous._records import Scope
from collectives.rendezvous.file import FileStore
from tests.rendezvous.groups import Arrivals, Rank, find_notice, job, meet
from tests.rendezvous.processes import started
from tests.rendezvous.threads import Outcome, background
from tests.waiting import eventually

CHILD = """
import sys
from collectives.rendezvous import open_store
from collectives.rendezvous.group import form
url, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
print("up", flush=True)
form(open_store(url), rank=rank, size=size, name="group", record={}, fingerprint="version 1", timeout=60)
print("formed", flush=True)
sys.stdin.read()
"""
BORN = "from collectives.rendezvous import _process; print(_process.born())"
SCOPE = Scope("group", None, 0, None)


def join(folder: Path, rank: int, size: int) -> subprocess.Popen[str]:
    """A process that joins as `rank`, once it has begun to."""
    child = started(CHILD, folder.as_uri(), str(rank), str(size))
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    return child


def end(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)


def slots(store: FileStore) -> int:
    """How many ranks have arrived in the current session."""
    notice = find_notice(store)
    if notice is None:
        return 0
    return sum(store.get(SCOPE.key(notice.session, slot(rank))) is not None for rank in range(notice.size))


def keys_left(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.name.startswith("k.")]


def check_lost(outcome: Outcome[Membership], rank: int, what: str) -> None:
    assert isinstance(outcome.error, PeerLost), outcome.error
    assert outcome.error.ranks == (rank,)
    assert f"rank {rank} (" in str(outcome.error) and what in str(outcome.error)


@pytest.mark.parametrize("victim", ["leader", "member"])
def test_a_rank_killed_while_others_wait_is_named_by_all(victim: str, tmp_path: Path) -> None:
    stores = [FileStore(tmp_path) for _ in range(3)]
    first = join(tmp_path, 3, 5) if victim == "leader" else None
    if first is not None:
        assert eventually(lambda: slots(stores[2]) == 1, 30)
    work = [background(lambda rank=rank: Rank(rank, 5).form(stores[rank])) for rank in (0, 1)]  # type: ignore[misc]
    child = first or join(tmp_path, 3, 5)
    assert eventually(lambda: slots(stores[2]) == 3, 30)
    end(child)
    start = time.monotonic()
    for thread, outcome in work:
        thread.join(30)
        check_lost(outcome, 3, "ended while the group formed")
    assert time.monotonic() - start < 20  # the deadline is 30 s
    assert eventually(lambda: not keys_left(tmp_path))
    for store in stores:
        store.close()


def test_a_leader_that_ended_before_the_others_join_is_named_by_all(tmp_path: Path) -> None:
    """It is of their run: their processes ran when it opened its session."""
    store = FileStore(tmp_path)
    child = join(tmp_path, 1, 3)
    assert eventually(lambda: slots(store) == 1, 30)
    end(child)
    for outcome in meet(lambda: FileStore(tmp_path), [Rank(0, 3), Rank(2, 3)]):
        check_lost(outcome, 1, "ended while the group formed")
    store.close()


def test_a_rank_that_raises_an_error_takes_its_slot_back(tmp_path: Path) -> None:
    """It is not lost: another process may join in its place."""
    stores = [FileStore(tmp_path) for _ in range(3)]
    thread, outcome = background(lambda: Rank(0, 3).form(stores[0]))
    assert eventually(lambda: slots(stores[2]) == 1, 30)
    child = join(tmp_path, 1, 3)
    assert eventually(lambda: slots(stores[2]) == 2, 30)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    assert slots(stores[2]) == 1
    time.sleep(1.0)  # the leader looks at the ranks twice a second
    others = [background(lambda rank=rank: Rank(rank, 3).form(stores[rank])) for rank in (1, 2)]  # type: ignore[misc]
    for waiting, result in [(thread, outcome), *others]:
        waiting.join(30)
        assert result.value.size == 3
    for store in stores:
        store.close()


def test_a_leader_that_falls_silent_is_named_by_all(tmp_path: Path) -> None:
    """Its process is stopped, so it has not ended: it counts as dead after `silence`, here 2 s."""
    stores = [FileStore(tmp_path) for _ in range(3)]
    child = join(tmp_path, 2, 4)
    assert eventually(lambda: slots(stores[2]) == 1, 30)
    options = {"silence": 2.0}
    work = [background(lambda rank=rank: Rank(rank, 4, options=options).form(stores[rank])) for rank in (0, 1)]  # type: ignore[misc]
    assert eventually(lambda: slots(stores[2]) == 3, 30)
    time.sleep(0.5)  # in which both hear the leader
    child.send_signal(signal.SIGSTOP)
    for thread, outcome in work:
        thread.join(30)
        check_lost(outcome, 2, "was silent for 2 s while the group formed")
    end(child)
    for store in stores:
        store.close()


def test_a_silent_leader_that_joins_again_in_time_is_a_member(tmp_path: Path) -> None:
    stores = [FileStore(tmp_path) for _ in range(3)]
    child = join(tmp_path, 2, 3)
    assert eventually(lambda: slots(stores[2]) == 1, 30)
    first = stores[2].get(SCOPE.notice)
    options = {"silence": 60.0}
    thread, outcome = background(lambda: Rank(0, 3, options=options).form(stores[0]))
    assert eventually(lambda: slots(stores[2]) == 2, 30)
    time.sleep(0.5)
    child.send_signal(signal.SIGSTOP)
    assert eventually(lambda: stores[2].get(SCOPE.notice) != first, 30)  # rank 0 leads now
    child.send_signal(signal.SIGCONT)
    last = Rank(1, 3).form(stores[1])
    thread.join(30)
    assert outcome.value.run_id == last.run_id
    assert child.stdout is not None and child.stdout.readline() == "formed\n"
    end(child)
    for store in stores:
        store.close()


# -- the exchange of values that follows, in some groups


def test_a_rank_that_ended_before_the_exchange_is_named(tmp_path: Path) -> None:
    stores = [FileStore(tmp_path) for _ in range(2)]
    child = join(tmp_path, 2, 3)
    work = [background(lambda rank=rank: Rank(rank, 3).form(stores[rank])) for rank in range(2)]  # type: ignore[misc]
    for thread, _ in work:
        thread.join(30)
    members = [outcome.value for _, outcome in work]
    assert not members[0].has_ended(2)
    end(child)
    assert [members[0].has_ended(rank) for rank in range(3)] == [False, False, True]
    exchanges = [background(lambda rank=rank: exchange(stores[rank], members[rank], rank)) for rank in range(2)]  # type: ignore[misc]
    for thread, outcome in exchanges:
        thread.join(30)
        assert isinstance(outcome.error, PeerLost), outcome.error
        assert outcome.error.ranks == (2,) and "rank 2 ended" in str(outcome.error)
    for store in stores:
        store.close()


@pytest.mark.parametrize(("timeout", "silence", "error"), [(30.0, 0.5, PeerLost), (0.5, 30.0, OpTimeout)])
def test_a_rank_that_does_not_exchange_is_named(
    timeout: float, silence: float, error: type[Exception], tmp_path: Path
) -> None:
    stores = [FileStore(tmp_path) for _ in range(3)]
    members = [outcome.value for outcome in meet(lambda: FileStore(tmp_path), job(3))]
    arrivals = Arrivals(2)  # each has passed its value before the first deadline
    clients = [arrivals.of(store) for store in stores]
    work = [
        background(lambda rank=rank: exchange(clients[rank], members[rank], rank, timeout, silence))  # type: ignore[misc]
        for rank in range(2)
    ]
    for thread, outcome in work:
        thread.join(30)
        assert isinstance(outcome.error, error), outcome.error
        assert "rank 2 did not answer" in str(outcome.error)
        assert getattr(outcome.error, "ranks", getattr(outcome.error, "late", None)) == (2,)
    assert not keys_left(tmp_path)
    for store in stores:
        store.close()


def test_when_this_process_started() -> None:
    born = float(subprocess.run([sys.executable, "-c", BORN], check=True, capture_output=True, text=True).stdout)
    assert _process.born() < born < _process.now()


def test_only_processes_of_this_machine_are_compared_by_their_clock() -> None:
    here = _process.origin()
    assert _process.is_of_this_machine(here)
    assert not _process.is_of_this_machine("")
    assert not _process.is_of_this_machine("another-boot " + here.partition(" ")[2])
