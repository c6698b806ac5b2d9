"""Which port a rank uses for each peer, decided from descriptions of ports; tests/verbs does it with devices."""

from __future__ import annotations

import ipaddress
import random
from typing import Any

import pytest

from collectives.transports.addresses import InterfaceAddress
from collectives.transports.rdma_networks import Network, Networks, common, network_of, of_ports, parse, port_in

RAILS = [Network("Ethernet", f"10.77.{i}.0/24:RoCEv2") for i in range(4)]


def interface(text: str) -> InterfaceAddress:
    found = ipaddress.ip_interface(text)
    return InterfaceAddress("eth0", 2, found.ip, found.network.prefixlen, True, False)


def port(
    device: str, address: str, near: bool = True, layer: str = "Ethernet", kind: str = "RoCE v2"
) -> dict[str, Any]:
    return {"device": device, "port": 1, "address": address, "address_kind": kind, "layer": layer, "near": near}


ADDRESSES = [interface("10.77.0.1/24"), interface("10.77.1.1/24"), interface("2001:db8::1/64")]
PORTS = [port("a", "::ffff:10.77.0.1"), port("b", "::ffff:10.77.1.1", near=False), port("c", "::ffff:10.77.0.9")]


@pytest.mark.parametrize(
    ("described", "network"),
    [
        (port("a", "::ffff:10.77.0.1"), RAILS[0]),
        (port("a", "::ffff:10.77.0.1", kind="RoCE v1"), Network("Ethernet", "10.77.0.0/24:RoCEv1")),
        (port("a", "::ffff:10.77.9.1"), Network("Ethernet", "10.77.9.1:RoCEv2")),  # of no interface that is known
        (port("a", "2001:db8::1"), Network("Ethernet", "2001:db8::/64:RoCEv2")),
        (port("a", "fe80::2:c903:1", layer="InfiniBand", kind="InfiniBand"), Network("InfiniBand", "fe80000000000000")),
    ],
)
def test_the_network_of_a_port(described: dict[str, Any], network: Network) -> None:
    assert network_of(described, ADDRESSES) == network


def test_what_is_published_is_read_back() -> None:
    found = of_ports(PORTS, ADDRESSES)
    assert found.near == {RAILS[0], Network("Ethernet", "10.77.0.9:RoCEv2")} and found.far == {RAILS[1]}
    assert parse((*found.published(), "192.0.2.1 4000")) == (found, ("192.0.2.1 4000",))


@pytest.mark.parametrize("texts", [(), ("192.0.2.1 4000",), ("near Ethernet=",), ("far Pigeon=1",), ("near A=1",) * 17])
def test_what_no_rank_publishes(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="not what a rank publishes"):
        parse(texts)


def test_two_ranks_choose_the_same_network_whoever_asks() -> None:
    dice = random.Random(3)
    for _ in range(300):
        pair = []
        for _ in range(2):
            mine = dice.sample(RAILS, dice.randint(1, 4))
            cut = dice.randint(0, len(mine))
            pair.append(Networks(frozenset(mine[:cut]), frozenset(mine[cut:])))
        first, second = pair
        turn = dice.randint(0, 9)
        found = common(first, second, turn)
        assert found == common(second, first, turn)
        assert (found is None) == (not first.all & second.all)
        assert found is None or (found in first.all and found in second.all)


def test_a_network_near_both_ranks_comes_first() -> None:
    everywhere = frozenset(RAILS)
    near_one = Networks(frozenset(RAILS[:1]), everywhere - {RAILS[0]})
    near_two = Networks(frozenset(RAILS[:2]), everywhere - set(RAILS[:2]))
    assert {common(near_one, near_two, turn) for turn in range(8)} == {RAILS[0]}
    # Nothing is near both: one that is near either of them.
    near_last = Networks(frozenset(RAILS[3:]), everywhere - {RAILS[3]})
    assert {common(near_one, near_last, turn) for turn in range(8)} == {RAILS[0], RAILS[3]}
    # Where all are near, pairs are divided among them.
    near_all = Networks(everywhere, frozenset())
    assert [common(near_all, near_all, turn) for turn in range(4)] == RAILS


def test_a_port_is_in_the_network_of_the_pair_and_near() -> None:
    def chosen(network: Network | None, rank: int, ports: list[dict[str, Any]] = PORTS) -> str | None:
        found = port_in(network, ["Ethernet"], ports, ADDRESSES, rank)
        return None if found is None else str(found["device"])

    assert chosen(RAILS[0], 5) == "a"
    assert chosen(RAILS[1], 5) == "b"  # far, but in the network
    assert chosen(RAILS[2], 5) is None
    # Without a network in common, the near ones take turns.
    assert [chosen(None, rank) for rank in range(3)] == ["a", "c", "a"]
    assert port_in(None, ["InfiniBand"], PORTS, ADDRESSES, 0) is None
    twice = [*PORTS, port("d", "::ffff:10.77.0.1")]
    assert [chosen(RAILS[0], rank, twice) for rank in range(3)] == ["a", "d", "a"]
