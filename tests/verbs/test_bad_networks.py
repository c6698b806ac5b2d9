"""TCP and RDMA through networks that delay, lose, and reorder packets: the VM's kernel has netem, which hosts often
lack. Results stay right, and nobody is taken for dead."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.verbs.networks import ip, only_in_the_vm
from tests.verbs.programs import run

pytestmark = pytest.mark.timeout(300)

NETWORKS = {
    "delay": "delay 20ms 5ms",
    "loss": "delay 1ms loss 1%",
    "reordering": "delay 5ms reorder 75% 50%",
    "duplicates": "delay 1ms duplicate 5%",
}

PROGRAM = """
for count in (1, 1_000, 300_000):
    x = np.arange(count, dtype=np.int64) * (rank + 1)
    assert (comm.allreduce(x) == np.arange(count) * 3).all()
    assert (comm.broadcast(x.copy(), root=1) == np.arange(count) * 2).all()
    gathered = comm.allgather(x)
    assert all((np.asarray(gathered[one]) == np.arange(count) * (one + 1)).all() for one in range(2))
comm.barrier()
say([link["kind"] for link in comm.dump()["links"]])
comm.close()
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[list[str]]]:
    """The commands that run something on each of two hosts, which a pair of interfaces joins."""
    only_in_the_vm()
    names = ("far0", "far1")
    for name in names:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("link", "add", "net0", "netns", names[0], "type", "veth", "peer", "name", "net1", "netns", names[1])
    for number, name in enumerate(names):
        ip("-n", name, "addr", "add", f"10.89.0.{number + 1}/24", "dev", f"net{number}")
        ip("-n", name, "link", "set", f"net{number}", "up")
    yield [["ip", "netns", "exec", name] for name in names]
    for name in names:
        ip("netns", "del", name)


@contextmanager
def disturbed(what: str, *interfaces: tuple[list[str], str]) -> Iterator[None]:
    """While this is open, packets that leave by `interfaces` (each with the prefix of its commands) are disturbed."""

    def tc(prefix: list[str], verb: str, name: str, *words: str) -> None:
        subprocess.run([*prefix, "tc", "qdisc", verb, "dev", name, "root", *words], check=True)

    for prefix, name in interfaces:
        tc(prefix, "add", name, "netem", *what.split())
    try:
        yield
    finally:
        for prefix, name in interfaces:
            tc(prefix, "del", name)


@pytest.mark.parametrize("what", NETWORKS)
def test_tcp(tmp_path: Path, hosts: list[list[str]], what: str) -> None:
    ends = [(prefix, f"net{number}") for number, prefix in enumerate(hosts)]
    with disturbed(NETWORKS[what], *ends):
        assert run(PROGRAM, 2, tmp_path, transport="tcp", prefixes=hosts) == [[["tcp"]], [["tcp"]]]


@pytest.mark.parametrize("what", ["delay 5ms", "loss 0.1%"], ids=["delay", "loss"])
def test_verbs(tmp_path: Path, what: str) -> None:
    """What soft-RoCE loses on the way it sends again, with all that followed: reordering would stop it altogether."""
    only_in_the_vm()
    with disturbed(what, ([], "veth0"), ([], "veth1")):
        assert run(PROGRAM, 2, tmp_path) == [[["verbs"]], [["verbs"]]]
