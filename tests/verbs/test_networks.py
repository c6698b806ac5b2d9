"""Ranks whose hosts have ports in several networks: each pair is linked by the network that both are in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verbs import networks
from tests.verbs.programs import outcomes, run
from tests.verbs.test_failures import attempt

pytestmark = pytest.mark.timeout(300)

WITHIN = 250.0  # seconds: the processor of the VM is emulated

REDUCE = """
x = np.arange(100_000, dtype=np.float32) + rank
total = comm.allreduce(x, algorithm="ring")
assert (total == size * np.arange(100_000) + size * (size - 1) / 2).all()
comm.alltoall(np.arange(size))
say({link["peer"]: link["path"] for link in comm.dump()["links"]})
comm.barrier()
comm.close()
"""


@pytest.fixture(scope="module", autouse=True)
def two_networks() -> Iterator[None]:
    networks.only_in_the_vm()
    with networks.second_network():
        yield


def devices(*names: str) -> list[list[str]]:
    """What stands in front of the command of each rank, so that it has these devices."""
    return [["env", f"COLLECTIVES_VERBS_DEVICE={name}"] for name in names]


def test_each_peer_is_reached_over_the_network_that_it_shares(tmp_path: Path) -> None:
    ((zero,), (one,), (two,)) = run(
        REDUCE, 3, tmp_path, WITHIN, prefixes=devices("rxe0,rxe2", "rxe1,rxe2", "rxe3,rxe0")
    )
    paths = {(rank, int(peer)): path for rank, all_of in enumerate((zero, one, two)) for peer, path in all_of.items()}
    ends = {pair: path.replace(" port 1", "").split(" to ") for pair, path in paths.items()}
    assert len(ends) == 6, paths
    for (rank, peer), (own, other) in ends.items():
        assert [other, own] == ends[peer, rank], paths  # both ends tell the same
        assert {own, other} <= {"rxe0", "rxe1"} or {own, other} <= {"rxe2", "rxe3"}, paths


def test_a_network_that_only_one_of_two_ranks_has(tmp_path: Path) -> None:
    """Rank 0 would take rxe2 by its number, and rank 1 has no port in that network."""
    ((zero,), (one,)) = run(REDUCE, 2, tmp_path, WITHIN, prefixes=devices("rxe2,rxe0", "rxe1"))
    assert zero == {"1": "rxe0 port 1 to rxe1 port 1"} and one == {"0": "rxe1 port 1 to rxe0 port 1"}


def test_ranks_without_a_network_in_common(tmp_path: Path) -> None:
    """No route leads from one to the other: all ranks learn which ports do not reach each other."""
    with networks.no_route():
        ended = outcomes("", 2, tmp_path, WITHIN, prefixes=devices("rxe0", "rxe3"))
    for one in ended:
        assert one.status == 1 and "TransportUnavailable" in one.errors, one
        last = one.errors.strip().splitlines()[-1]
        assert "there is no path to rxe" in last and "rxe0 port 1" in last and "rxe3 port 1" in last, last
        assert "of rank 0" in last or "of rank 1" in last, last


def test_a_port_that_is_down(tmp_path: Path) -> None:
    """It is named to ranks that may use no other; those that may use others do."""
    with networks.interface_down("veth3"):
        networks.wait(lambda: networks.is_down("rxe2") and networks.is_down("rxe3"))
        text = attempt(COLLECTIVES_VERBS_DEVICE="rxe3")
        assert "rxe3 port 1: it is down" in text and "ip link set" in text, text
        doctor = [sys.executable, "-m", "collectives", "doctor"]
        told = subprocess.run(doctor, check=False, capture_output=True, text=True).stdout
        assert "it is down" in told and "until then ranks use other ports" in " ".join(told.split()), told
        ((zero,), (one,)) = run(REDUCE, 2, tmp_path, WITHIN, prefixes=devices("rxe3,rxe0", "rxe2,rxe1"))
    assert zero == {"1": "rxe0 port 1 to rxe1 port 1"} and one == {"0": "rxe1 port 1 to rxe0 port 1"}
