"""transport="auto" between two hosts that both have RDMA: each rank has a network namespace of its own, joined for TCP
by a pair of interfaces, and one of the VM's two devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs.networks import ip, only_in_the_vm
from tests.verbs.programs import run, started

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """The commands that run something on each of two hosts."""
    only_in_the_vm()
    names = ("hosta", "hostb")
    for name in names:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("link", "add", "tcpa", "netns", names[0], "type", "veth", "peer", "name", "tcpb", "netns", names[1])
    for number, name in enumerate(names):
        ip("-n", name, "addr", "add", f"10.88.0.{number + 1}/24", "dev", f"tcp{'ab'[number]}")
        ip("-n", name, "link", "set", f"tcp{'ab'[number]}", "up")
        # The device's address is the VM's; a host of its own would have it, too.
        ip("-n", name, "link", "add", "rdma0", "type", "dummy")
        ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "rdma0")
        ip("-n", name, "link", "set", "rdma0", "up")
    yield [f"ip netns exec {name}" for name in names]
    for name in names:
        ip("netns", "del", name)


PROGRAM = """
x = np.arange(300_000, dtype=np.float32)
total = comm.allreduce(x)
assert (total == size * x).all()
print(comm.explain("allreduce", 1 << 20), flush=True)
comm.barrier()
comm.close()
"""


@pytest.mark.parametrize("devices", [("rxe0", "rxe1"), ("rxe0", "none")], ids=["both", "one"])
def test_verbs_between_hosts_that_both_have_them(tmp_path: Path, hosts: list[str], devices: tuple[str, str]) -> None:
    prefixes = [
        [*host.split(), "env", f"COLLECTIVES_VERBS_DEVICE={device}", f"COLLECTIVES_INTERFACE=tcp{letter}"]
        for host, device, letter in zip(hosts, devices, "ab", strict=True)
    ]
    with started(PROGRAM, 2, tmp_path, "auto", prefixes=prefixes) as ranks:
        for process in ranks:
            out, errors = process.communicate(timeout=200)
            assert process.returncode == 0, out + errors
            wanted = "1 over verbs" if devices == ("rxe0", "rxe1") else "1 over tcp"
            assert wanted in out, out


TWO_EACH = """
# Through shared memory inside a host, by RDMA between hosts: the device reads and writes the arrays of comm.empty.
n = 300_000
x, out = comm.empty(n), comm.empty(n)
later = comm.split(0)  # another communicator, with other links, and the same registrations
made, copied = [], []
for turn in range(30):
    x[...] = np.arange(n) % 1000 + rank + turn
    out[...] = -1
    where = later if turn % 3 == 2 else comm
    where.allreduce(x, out=out, algorithm="hierarchical_ring")
    assert np.array_equal(out, np.arange(n) % 1000 * size + 6 + size * turn), turn
    if turn >= 3:
        made.append(counts()["regions_made"])
        copied.append(counts()["copied"])
say([sorted(link["kind"] for link in comm.dump()["links"]), made, copied, counts()])
del x, out
# Blocks that come and go, at the same addresses, give back what was registered.
for turn in range(5):
    x = comm.empty(n + turn)
    x[...] = rank
    comm.allreduce(x, out=x, algorithm="hierarchical_ring")
    assert (x == 6).all()
    del x
say(counts()["regions_kept"])
comm.barrier()
later.close()
comm.close()
"""


def test_shared_memory_in_a_host_and_verbs_between_hosts(tmp_path: Path, hosts: list[str]) -> None:
    of_hosts = [
        [*host.split(), "env", f"COLLECTIVES_VERBS_DEVICE=rxe{number}", f"COLLECTIVES_INTERFACE=tcp{'ab'[number]}"]
        for number, host in enumerate(hosts)
    ]
    prefixes = [of_hosts[rank // 2] for rank in range(4)]
    for (kinds, made, copied, total), kept in run(TWO_EACH, 4, tmp_path, transport="auto", prefixes=prefixes):
        assert "verbs" in kinds and "shm" in kinds
        assert total["straight"] > 0 and len(set(copied)) == 1, (copied, total)
        assert len(set(made)) == 1, made
        assert total["regions_refused"] == 0
        assert kept == 0, "registrations outlive their arrays"
