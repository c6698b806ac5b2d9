"""Which ranks can be linked by RDMA verbs, decided without a device; tests/verbs has what needs devices."""

from __future__ import annotations

import dataclasses

import pytest

from collectives.native.errors import TransportUnavailable
from collectives.transports import abstract, registry
from collectives.transports.host import HostIdentity
from collectives.transports.transport import Place, Scope, left_out
from collectives.transports.verbs import VerbsTransport

HERE = HostIdentity.here(abstract.name())
ELSEWHERE = dataclasses.replace(HERE, host="elsewhere", boot="another", netns=1, cookie="another")
TCP = "192.0.2.1 4000"


def place(*addresses: str, identity: HostIdentity = HERE, rank: int = 0) -> Place:
    return Place(rank, identity, addresses)


def test_ranks_with_ports_of_one_kind_reach_each_other() -> None:
    mine, theirs = place("layers Ethernet", TCP), place("layers Ethernet InfiniBand", TCP, identity=ELSEWHERE, rank=1)
    assert VerbsTransport().reaches(mine, theirs) is None
    assert VerbsTransport().reaches(theirs, mine) is None


def test_ports_of_two_kinds_do_not_reach_each_other() -> None:
    reason = VerbsTransport().reaches(place("layers Ethernet", TCP), place("layers InfiniBand", TCP, rank=1))
    assert reason is not None and "rank 0" in reason and "of Ethernet" in reason and "of InfiniBand" in reason


def test_a_rank_without_verbs_is_named() -> None:
    reason = VerbsTransport().reaches(place("layers Ethernet", TCP), place(rank=1))
    assert reason is not None and "rank 1" in reason and "does not offer RDMA verbs" in reason


def test_hosts_that_do_not_reach_each_other_over_tcp_are_not_linked() -> None:
    mine = place("layers Ethernet", "127.0.0.1 4000")
    theirs = place("layers Ethernet", TCP, identity=ELSEWHERE, rank=1)
    assert "loopback only" in str(VerbsTransport().reaches(mine, theirs))


@pytest.mark.parametrize("address", ["", "Ethernet", "layers Pigeon", TCP])
def test_what_no_rank_publishes_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not what a rank publishes"):
        VerbsTransport().reaches(place("layers Ethernet", TCP), place(address, TCP, rank=1))


def test_a_machine_without_rdma_says_what_is_missing() -> None:
    if left_out("verbs"):
        pytest.skip(str(left_out("verbs")))
    reason = registry.available("verbs")
    if reason is None:
        pytest.skip("this machine has RDMA ports that can be used")
    assert "libibverbs" in reason or "no RDMA device" in reason or "port" in reason
    with pytest.raises(TransportUnavailable):
        VerbsTransport().listen(Scope(network=False))


def test_auto_does_not_take_verbs_yet() -> None:
    assert "verbs" in registry.schemes()
    assert "verbs" not in registry.AUTO
