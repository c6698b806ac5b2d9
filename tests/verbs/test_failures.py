"""RDMA that is not there, or fails in the middle: a typed error on every rank, which says what to do."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collectives.rendezvous import secret
from tests.collectives.conformance.case import Case
from tests.collectives.conformance.ranks import Job, ProcessRank, everyone, failures, processes
from tests.verbs import failing, networks
from tests.verbs.programs import go_on, said, started

WITHIN = 280.0  # seconds for an answer of a rank that works: the processor of the VM is emulated
NOTICED = 12.0  # seconds until all survivors have raised
MIB = 1 << 20

pytestmark = pytest.mark.timeout(300)
_jobs = itertools.count()


@contextmanager
def linked(size: int, folder: Path) -> Iterator[list[ProcessRank]]:
    """Ranks that have made one call over verbs, so that all of their links are open."""
    key = folder / "secret"
    secret.write(key, secret.mint())
    with processes([()] * size) as ranks:
        assert not failures(everyone(ranks, [{"do": "leave"}] * size, WITHIN))  # all of them have started
        job = Job((folder / "store").as_uri(), "verbs", size, f"failing{next(_jobs)}", str(key))
        assert not failures(everyone(ranks, [job.command(rank) for rank in range(size)], WITHIN))
        assert not failures(everyone(ranks, [call(Case("alltoall"))] * size, WITHIN))
        yield ranks


def call(case: Case) -> dict[str, Any]:
    return {"do": "case", "case": case.to_json()}


def raised(ranks: Sequence[ProcessRank]) -> list[str]:
    """What each rank raises, within the limit."""
    began = time.monotonic()
    complaints = ["".join(rank.answer(WITHIN)) for rank in ranks]
    assert time.monotonic() - began < NOTICED, complaints
    return complaints


@pytest.mark.parametrize("elements", [5, 20 * MIB // 4], ids=["waiting", "moving"])
def test_all_survivors_name_a_killed_rank(tmp_path: Path, elements: int) -> None:
    with linked(3, tmp_path) as ranks:
        for rank in ranks if elements > 5 else ranks[:2]:
            rank.ask(call(Case("allreduce", shape=(elements,))))
        time.sleep(1.0)  # into the middle of the call
        ranks[2]._process.kill()
        for complaint in raised(ranks[:2]):
            assert "PeerLost" in complaint and "rank 2" in complaint, complaint


def test_a_dead_path_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    """Ranks 0 and 2 have one device, rank 1 the other; what comes to the latter is lost, but TCP goes on."""
    networks.only_in_the_vm()
    with linked(3, tmp_path) as ranks, networks.cut_path():
        for rank in ranks:
            rank.ask(call(Case("allreduce", shape=(MIB,))))
        complaints = raised(ranks)
    assert all("PeerLost" in complaint for complaint in complaints), complaints
    assert any("rxe" in complaint and "port 1" in complaint for complaint in complaints), complaints


@pytest.mark.parametrize("elements", [0, 5], ids=["barrier", "allreduce"])
def test_short_messages_that_are_lost_are_an_error_on_all_ranks(tmp_path: Path, elements: int) -> None:
    """They count as sent when they are copied, so it may be a rank that only waits which finds the dead path.

    A rank that needs nothing more completes the call; then it learns what has happened in the next one.
    """
    networks.only_in_the_vm()
    with linked(3, tmp_path) as ranks, networks.cut_path():
        for rank in ranks:
            rank.ask(call(Case("allreduce", shape=(elements,)) if elements else Case("barrier")))
            rank.ask(call(Case("barrier")))
        complaints = [first + second for first, second in zip(raised(ranks), raised(ranks), strict=True)]
    assert all("PeerLost" in complaint for complaint in complaints), complaints
    assert any("rxe" in complaint and "port 1" in complaint for complaint in complaints), complaints


def test_a_receiver_finds_that_a_message_is_lost_although_its_sender_goes_on(tmp_path: Path) -> None:
    """The sender computes, and so does a third rank, until the receiver has raised its error."""
    networks.only_in_the_vm()
    program = """
    x = np.zeros(5)
    comm.alltoall(np.zeros(3))
    say("ready")
    sys.stdin.readline()
    if rank == 0:
        comm.send(x, 1)
        say("sent")
        sys.stdin.readline()
        os._exit(0)
    if rank == 2:
        sys.stdin.readline()
    began = time.monotonic()
    try:
        comm.recv(x, 0 if rank == 1 else 1)
    except collectives.PeerLost as error:
        say([time.monotonic() - began, str(error), list(error.ranks)])
    os._exit(0)
    """
    with started(program, 3, tmp_path) as ranks:
        for rank in range(3):
            assert said(ranks, rank) == "ready"
        with networks.cut_path():
            go_on(ranks)
            assert said(ranks, 0) == "sent"
            for rank in (1, 2):
                if rank == 2:
                    go_on(ranks[2:])
                elapsed, complaint, named = said(ranks, rank)
                assert elapsed < NOTICED, complaint
                assert named, complaint
                assert rank == 2 or ("rank 0" in complaint and "rxe" in complaint), complaint
            go_on(ranks[:1])
            assert ranks[0].wait(WITHIN) == 0


@pytest.mark.parametrize("elements", [5, failing.LARGE], ids=["short", "long"])
def test_an_interface_that_goes_down_in_the_middle(elements: int) -> None:
    networks.only_in_the_vm()
    ((_, wrong),) = failing.failed("down", 0.2, elements)
    assert not wrong, wrong


def test_an_error_says_that_the_own_port_is_down(tmp_path: Path) -> None:
    networks.only_in_the_vm()
    with linked(2, tmp_path) as ranks, networks.interface_down("veth1"):
        for rank in ranks:
            rank.ask(call(Case("allreduce", shape=(MIB,))))
        complaints = raised(ranks)
    assert any("this port is down" in complaint for complaint in complaints), complaints


def attempt(prepare: Callable[[], None] | None = None, prefix: Sequence[str] = (), **variables: str) -> str:
    """The error of `init` in a process of its own."""
    program = """if True:
        import collectives
        try:
            collectives.init("memory://x", rank=0, size=2, transport="verbs", join_timeout=1)
        except collectives.TransportUnavailable as error:
            print(error)
    """
    done = subprocess.run(
        [*prefix, sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=prepare,
        env={**os.environ, **variables},
    )
    return done.stdout


def test_a_device_that_does_not_exist() -> None:
    text = attempt(COLLECTIVES_VERBS_DEVICE="mlx9_9")
    assert "COLLECTIVES_VERBS_DEVICE" in text and "rxe0, rxe1" in text, text


def test_an_address_that_does_not_exist() -> None:
    assert "GID) of index 77" in attempt(COLLECTIVES_VERBS_DEVICE="rxe0:1:77")


def test_too_little_memory_may_be_locked() -> None:
    def limit() -> None:
        drop_from_bounding_set, may_lock_all = 24, 14
        assert ctypes.CDLL(None).prctl(drop_from_bounding_set, may_lock_all, 0, 0, 0) == 0
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))

    text = attempt(limit)
    assert "ulimit -l" in text and "64 KiB" in text, text


def test_without_libibverbs() -> None:
    (found,) = Path("/usr/lib").glob("*/libibverbs.so.1")
    hide = f'mount --bind /dev/null {found.resolve()} && exec "$@"'
    text = attempt(prefix=["unshare", "-m", "sh", "-c", hide, "sh"])
    assert "libibverbs" in text and "apt-get install" in text, text


def test_doctor_lists_the_ports_and_tries_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "collectives", "doctor", "-n", "2", "--json"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "COLLECTIVES_TRANSPORT": "verbs"},
    )
    sections = json.loads(done.stdout)["sections"]
    assert sections["transports"]["verbs"] == "works"
    for name in ("rxe0 port 1", "rxe1 port 1"):
        assert sections["rdma"][name].startswith("active, Ethernet, ::ffff:10.77.0."), sections["rdma"]


CHANGED = """
def changed(*arrays):
    # How many bytes change within a second, of arrays that no rank and no device may write to any more.
    bytes_of = [array.reshape(-1).view(np.uint8) for array in arrays]
    for each in bytes_of:
        each[:] = 0xA5
    until = time.monotonic() + 1
    while time.monotonic() < until:
        time.sleep(0.05)
    return sum(int((each != 0xA5).sum()) for each in bytes_of)

"""


@pytest.mark.parametrize("elements", [5, failing.LARGE], ids=["short", "long"])
def test_different_collectives_are_an_error_on_both_ranks(tmp_path: Path, elements: int) -> None:
    program = """
    n = int(os.environ["TEST_ELEMENTS"])
    x, out, parts = (np.ones(shape, np.float32) for shape in (n, n, (2, n)))
    comm.allreduce(x, out=out)
    say("ready")
    began = time.monotonic()
    try:
        comm.allreduce(x, out=out) if rank == 0 else comm.allgather(x, out=parts)
    except collectives.DesyncError as error:
        say([time.monotonic() - began, str(error), changed(x, out, parts)])
    sys.stdin.readline()
    os._exit(0)
    """
    with started(CHANGED + textwrap.dedent(program), 2, tmp_path, TEST_ELEMENTS=str(elements)) as ranks:
        assert [said(ranks, rank) for rank in range(2)] == ["ready", "ready"]
        for rank in range(2):
            elapsed, complaint, dirty = said(ranks, rank)
            assert elapsed < NOTICED and "allreduce" in complaint and "allgather" in complaint, complaint
            assert dirty == 0
        go_on(ranks)


def test_no_byte_changes_after_a_timeout_although_the_peer_goes_on(tmp_path: Path) -> None:
    """The receiver's time is over in the middle of a message; the sender lives, and tries to send more."""
    program = """
    x = np.ones(8 << 20, np.float32)
    times = []
    for _ in range(3):
        began = time.monotonic()
        comm.recv(x, 1) if rank == 0 else comm.send(x, 0)
        times.append(time.monotonic() - began)
    say("ready")
    sys.stdin.readline()
    try:
        comm.recv(x, 1, timeout=min(times) / 4) if rank == 0 else comm.send(x, 0)
    except collectives.OpTimeout as error:
        first = str(error)
        if rank == 0:
            say([first, changed(x)])
        refused = 0
        until = time.monotonic() + 2
        while rank == 1 and time.monotonic() < until:
            try:
                comm.send(x, 0)
            except collectives.OpTimeout:
                refused += 1
            time.sleep(0.01)
        if rank == 1:
            say([first, refused])
    sys.stdin.readline()
    os._exit(0)
    """
    with started(CHANGED + textwrap.dedent(program), 2, tmp_path) as ranks:
        assert [said(ranks, rank) for rank in range(2)] == ["ready", "ready"]
        for rank in (1, 0):  # the sender begins first
            go_on(ranks[rank : rank + 1])
        complaint, dirty = said(ranks, 0)
        assert "timed out" in complaint and "rank 1" in complaint, complaint
        assert dirty == 0
        complaint, refused = said(ranks, 1)
        assert "timed out" in complaint and refused > 0, complaint
        go_on(ranks)
