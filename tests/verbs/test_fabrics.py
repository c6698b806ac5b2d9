"""Fabrics and ranks that are set up badly: a typed error on every rank, which says what is wrong, or it works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.verbs import networks
from tests.verbs.programs import outcomes, run

pytestmark = pytest.mark.timeout(300)

WITHIN = 250.0  # seconds: the processor of the VM is emulated

LONG_MESSAGES = """
x = np.arange(300_000, dtype=np.float32) + rank
out = np.empty_like(x)
for algorithm in ("ring", "halving_doubling"):
    comm.allreduce(x, out=out, algorithm=algorithm)
    assert (out == size * np.arange(300_000) + size * (size - 1) / 2).all()
comm.broadcast(x, root=1)
assert (x == np.arange(300_000) + 1).all()
comm.barrier()
comm.close()
"""


@pytest.mark.parametrize("smaller", ["veth0", "veth1"])
def test_ports_of_different_mtus(tmp_path: Path, smaller: str) -> None:
    """Writes longer than the smaller MTU would complete without arriving."""
    networks.only_in_the_vm()
    with networks.mtu(smaller, 1500):
        run(LONG_MESSAGES, 2, tmp_path, WITHIN)


def test_addresses_of_two_kinds(tmp_path: Path) -> None:
    """GID index 0 is the link-local IPv6 address, 1 that of IPv4."""
    prefixes = [["env", f"COLLECTIVES_VERBS_DEVICE={wish}"] for wish in ("rxe0:1:0", "rxe1:1:1")]
    for one in outcomes("", 2, tmp_path, WITHIN, prefixes=prefixes):
        assert one.status == 1 and "TransportUnavailable" in one.errors, one
        assert "addresses of one kind" in one.errors and "rxe" in one.errors and "of rank" in one.errors, one


def test_an_address_that_does_not_answer(tmp_path: Path) -> None:
    networks.only_in_the_vm()
    with networks.silent():
        for one in outcomes("", 2, tmp_path, WITHIN):
            assert one.status == 1 and "TransportUnavailable" in one.errors, one
            assert "there is no path to rxe" in one.errors and "of rank" in one.errors, one


def test_a_peer_that_is_not_on_verbs(tmp_path: Path) -> None:
    """Ranks agree on the transport before anything is linked."""
    prefixes = [["env", f"TEST_TRANSPORT={name}"] for name in ("verbs", "tcp")]
    for one in outcomes("", 2, tmp_path, WITHIN, prefixes=prefixes):
        assert one.status == 1 and "ConfigMismatch" in one.errors, one
        assert "verbs" in one.errors and "tcp" in one.errors, one


def test_memory_that_may_not_be_locked_after_some_links(tmp_path: Path) -> None:
    """The limit suffices for one communicator of two ranks; all ranks learn that the second one is too much."""
    program = """
    others = []
    try:
        while len(others) < 50:
            others.append(comm.dup())
            others[-1].barrier()
    except collectives.CollectiveError as error:
        say([type(error).__name__, str(error)])
    os._exit(0)
    """
    limited = (
        "import ctypes, os, resource, sys; ctypes.CDLL(None).prctl(24, 14, 0, 0, 0); "
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (2 << 20, 2 << 20)); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    prefixes = [[sys.executable, "-c", limited], []]
    for (said,) in run(program, 2, tmp_path, WITHIN, prefixes=prefixes):
        assert said[0] == "TransportUnavailable" and "ulimit -l" in said[1] and "rxe0" in said[1], said


def test_arrays_that_cannot_be_registered(tmp_path: Path) -> None:
    """Of memory that is read-only no registration is made: it is copied, and the result is right."""
    program = """
    n = 1 << 19
    path = os.path.join(os.path.dirname(os.environ["COLLECTIVES_SECRET_FILE"]), f"values{rank}")
    (np.arange(n, dtype=np.float32) + rank).tofile(path)
    x = np.memmap(path, np.float32, "r")
    out = np.empty(n, np.float32)
    comm.allreduce(x, out=out, algorithm="ring")
    assert (out == 2 * np.arange(n) + 1).all()
    try:
        comm.allreduce(np.ones(n, np.float32), out=x)
    except ValueError as error:
        say(str(error))
    say(counts()["regions_refused"])
    comm.barrier()
    comm.close()
    """
    for refusal, refused in run(program, 2, tmp_path, WITHIN):
        assert "read-only" in refusal or "writ" in refusal, refusal
        assert refused > 0
