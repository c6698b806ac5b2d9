"""transport="auto" between two hosts that both have RDMA: each rank has a network namespace of its own, joined for TCP
by a pair of interfaces, and one of the VM's two devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs.networks import ip, only_in_the_vm
from tests.verbs.programs import started

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
