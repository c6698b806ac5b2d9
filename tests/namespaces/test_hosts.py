"""Jobs that span hosts: each network namespace is one, with interfaces of its own.

A fast loopback hides mistakes: here an address that does not lead to the peer leads nowhere.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from collectives.bench.namespaces import Ended, hosts, received_bytes, run_ranks, why_not

RANK = str(Path(__file__).with_name("rank.py"))
SECRET = bytes(range(32))
MIB = 1 << 20

_reason = why_not()
pytestmark = pytest.mark.skipif(_reason is not None, reason=str(_reason))


def reports(ended: list[Ended]) -> list[dict[str, object]]:
    assert [e.code for e in ended] == [0] * len(ended), "\n".join(e.err for e in ended)
    return [json.loads(e.out) for e in ended]


@pytest.mark.parametrize("network", ["10.99.0.{}/24", "fd99::{}/64"], ids=["IPv4", "IPv6"])
def test_ranks_on_two_hosts(network: str) -> None:
    with hosts(2, [network]) as (one, two):
        found = reports(run_ranks([one, one, two, two], RANK, secret=SECRET))
        assert [report["local"] for report in found] == [[0, 2], [1, 2], [0, 2], [1, 2]]
        assert all("tcp" in str(report["links"]) for report in found)
        assert received_bytes(one, "net0") > MIB and received_bytes(two, "net0") > MIB
        assert received_bytes(one, "lo") == 0 and received_bytes(two, "lo") == 0  # shared memory inside a host


def test_link_local_addresses_need_no_configuration() -> None:
    with hosts(2, ["fe80::{}/64"]) as pair:
        reports(run_ranks(pair, RANK, secret=SECRET))


def test_unequal_ranks_per_host() -> None:
    with hosts(3) as (one, two, three):
        found = reports(run_ranks([one, two, two, three, two], RANK, secret=SECRET))
        assert [report["local"] for report in found] == [[0, 1], [0, 3], [1, 3], [0, 1], [2, 3]]


@pytest.mark.parametrize("chosen", ["net0", "net1"])
def test_the_interface_asked_for_carries_the_data(chosen: str) -> None:
    with hosts(2, ["10.99.0.{}/24", "10.98.0.{}/24"]) as pair:
        other = "net0" if chosen == "net1" else "net1"
        reports(run_ranks(pair, RANK, secret=SECRET, environment={"COLLECTIVES_INTERFACE": chosen}))
        for host in pair:
            assert received_bytes(host, chosen) > MIB
            assert received_bytes(host, other) < MIB // 8


def test_an_address_that_leads_nowhere_is_passed_over() -> None:
    """Every host has the same address on one of its interfaces, as container bridges do."""
    with hosts(2, ["10.99.0.{}/24"]) as pair:
        for host in pair:
            for command in (
                ["link", "add", "docker0", "type", "bridge"],
                ["addr", "add", "172.30.0.1/16", "dev", "docker0"],
                ["link", "set", "docker0", "up"],
            ):
                subprocess.run(["ip", "-n", host.namespace, *command], check=True)
        reports(run_ranks(pair, RANK, secret=SECRET))


def test_without_a_secret_hosts_are_not_joined() -> None:
    with hosts(2) as pair:
        ended = run_ranks(pair, RANK, secret=None)
        for each in ended:
            assert each.code != 0
            assert "TransportUnavailable" in each.err and "secret" in each.err, each.err
