"""Which ranks can be linked by RDMA verbs, decided without a device; tests/verbs has what needs devices."""

from __future__ import annotations

import dataclasses

import pytest

from collectives.native.errors import TransportUnavailable
from collectives.transports import abstract, registry
from collectives.transports.host import HostIdentity
from collectives.transports.transport import Place, Scope, left_out
from collectives.transports.verbs import VerbsBetweenHosts, VerbsTransport

HERE = HostIdentity.here(abstract.name())
ELSEWHERE = dataclasses.replace(HERE, host="elsewhere", boot="another", netns=1, cookie="another")
TCP = "192.0.2.1 4000"
ETHERNET = "near Ethernet=192.0.2.0/24:RoCEv2"
INFINIBAND = "near InfiniBand=fe80000000000000"


def place(*addresses: str, identity: HostIdentity = HERE, rank: int = 0) -> Place:
    return Place(rank, identity, addresses)


def test_ranks_with_ports_of_one_kind_reach_each_other() -> None:
    mine, theirs = place(ETHERNET, TCP), place(ETHERNET, INFINIBAND, TCP, identity=ELSEWHERE, rank=1)
    assert VerbsTransport().reaches(mine, theirs) is None
    assert VerbsTransport().reaches(theirs, mine) is None


def test_ports_of_two_kinds_do_not_reach_each_other() -> None:
    reason = VerbsTransport().reaches(place(ETHERNET, TCP), place(INFINIBAND, TCP, rank=1))
    assert reason is not None and "rank 0" in reason and "of Ethernet" in reason and "of InfiniBand" in reason


def test_a_rank_without_verbs_is_named() -> None:
    reason = VerbsTransport().reaches(place(ETHERNET, TCP), place(rank=1))
    assert reason is not None and "rank 1" in reason and "does not offer RDMA verbs" in reason


def test_hosts_that_do_not_reach_each_other_over_tcp_are_not_linked() -> None:
    mine = place(ETHERNET, "127.0.0.1 4000")
    theirs = place(ETHERNET, TCP, identity=ELSEWHERE, rank=1)
    assert "loopback only" in str(VerbsTransport().reaches(mine, theirs))


@pytest.mark.parametrize("address", ["", "Ethernet", "near Pigeon=1", "near Ethernet", "layers Ethernet", TCP])
def test_what_no_rank_publishes_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not what a rank publishes"):
        VerbsTransport().reaches(place(ETHERNET, TCP), place(address, TCP, rank=1))


def test_a_machine_without_rdma_says_what_is_missing() -> None:
    if left_out("verbs"):
        pytest.skip(str(left_out("verbs")))
    reason = registry.available("verbs")
    if reason is None:
        pytest.skip("this machine has RDMA ports that can be used")
    assert "libibverbs" in reason or "no RDMA device" in reason or "port" in reason
    with pytest.raises(TransportUnavailable):
        VerbsTransport().listen(Scope(network=False))


def test_auto_takes_verbs_between_hosts_in_one_network() -> None:
    transport = registry.automatic("verbs")
    assert isinstance(transport, VerbsBetweenHosts)
    mine = place(ETHERNET, TCP)
    assert transport.reaches(mine, place(ETHERNET, TCP, identity=ELSEWHERE, rank=1)) is None
    assert transport.reaches(place(INFINIBAND, TCP), place(INFINIBAND, TCP, identity=ELSEWHERE, rank=1)) is None
    assert transport.reaches(mine, place(INFINIBAND, ETHERNET, TCP, identity=ELSEWHERE, rank=1)) is None


@pytest.mark.parametrize(
    ("theirs", "identity", "reason"),
    [
        (ETHERNET, HERE, "are on one host"),
        ("near Ethernet=198.51.100.0/24:RoCEv2", ELSEWHERE, "in different networks"),
        ("near Ethernet=192.0.2.0/24:RoCEv1", ELSEWHERE, "in different networks"),
        (INFINIBAND, ELSEWHERE, "has RDMA ports of "),
    ],
)
def test_auto_leaves_verbs_to_those_who_ask_for_them(theirs: str, identity: HostIdentity, reason: str) -> None:
    mine, other = place(ETHERNET, TCP), place(theirs, TCP, identity=identity, rank=1)
    for pair in ((mine, other), (other, mine)):
        assert reason in str(VerbsBetweenHosts().reaches(*pair))
