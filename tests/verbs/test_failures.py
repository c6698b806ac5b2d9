"""RDMA that is not there, or fails in the middle: a typed error on every rank, which says what to do."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collectives.rendezvous import secret
from tests.collectives.conformance.case import Case
from tests.collectives.conformance.ranks import Job, ProcessRank, everyone, failures, processes
from tests.verbs import networks

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


def attempt(prepare: Callable[[], None] | None = None, prefix: Sequence[str] = (), **variables: str) -> str:
    """The error of `init` in a process of its own."""
    program = """if True:
        import collectives
        try:
            collectives.init("memory://x", rank=0, size=2, transport="verbs", join_timeout=20)
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
