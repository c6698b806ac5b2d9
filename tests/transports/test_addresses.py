"""Which addresses are published, and in which order a peer tries them."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.transports.addresses import (
    IP,
    Endpoint,
    InterfaceAddress,
    candidates,
    choose,
    interface_addresses,
    source_address,
)


def address(interface: str, text: str, index: int = 2, running: bool = True) -> InterfaceAddress:
    with_prefix = ipaddress.ip_interface(text)
    return InterfaceAddress(
        interface, index, with_prefix.ip, with_prefix.network.prefixlen, running, with_prefix.ip.is_loopback
    )


LO = address("lo", "127.0.0.1/8", 1)
LO6 = address("lo", "::1/128", 1)
ETH = address("eth0", "10.1.0.5/16", 2)
ETH6 = address("eth0", "2001:db8::5/64", 2)
ETH_LINK = address("eth0", "fe80::5/64", 2)
IB = address("ib0", "10.9.0.5/24", 3)
BRIDGE = address("docker0", "172.17.0.1/16", 4)
IDLE_BRIDGE = address("virbr0", "192.168.122.1/24", 5, running=False)
ONLY_LINK = address("eth1", "fe80::15/64", 6)
MINE = [LO, LO6, ETH, ETH6, ETH_LINK, IB, BRIDGE, IDLE_BRIDGE, ONLY_LINK]


def routed(endpoint: Endpoint) -> IP | None:
    """A routing table: 10.9/24 leaves by ib0, 203.0.113/24 is unreachable, the rest leaves by eth0."""
    if endpoint.ip in ipaddress.ip_network("203.0.113.0/24"):
        return None
    if endpoint.ip in ipaddress.ip_network("10.9.0.0/24"):
        return IB.ip
    if endpoint.ip.is_link_local:
        return {2: ETH_LINK.ip, 6: ONLY_LINK.ip}[endpoint.scope]
    return ETH6.ip if endpoint.ip.version == 6 else ETH.ip


def order(*texts: str, same_network: bool = False, interface: str | None = None) -> list[str]:
    theirs = [Endpoint.parse(t) for t in texts]
    return [e.native() for e in candidates(theirs, MINE, same_network, interface, routed)]


def test_published_are_running_interfaces_without_loopback() -> None:
    assert choose(MINE, None) == [ETH, ETH6, IB, BRIDGE, ONLY_LINK]


def test_link_local_is_published_only_where_there_is_nothing_else() -> None:
    assert ONLY_LINK in choose(MINE, None)
    assert ETH_LINK not in choose(MINE, None)


def test_an_interface_can_be_named_or_given_by_address() -> None:
    assert choose(MINE, "ib0") == [IB]
    assert choose(MINE, "10.9.0.5") == [IB]
    assert choose(MINE, "fe80::15%eth1") == [ONLY_LINK]
    assert choose(MINE, "lo") == [LO, LO6]


def test_an_unknown_interface_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'eth7'.*eth0 \(10\.1\.0\.5\)"):
        choose(MINE, "eth7")


def test_loopback_is_first_within_one_network_namespace() -> None:
    assert order("10.1.0.5 7", "127.0.0.1 7", same_network=True) == ["127.0.0.1 7", "10.1.0.5 7"]


def test_loopback_is_never_used_between_machines() -> None:
    assert order("127.0.0.1 7", "::1 7", "127.5.5.5 7", "::ffff:127.0.0.1 7") == []


def test_an_address_that_this_machine_has_too_is_left_out() -> None:
    assert order("172.17.0.1 7", "10.1.0.9 7") == ["10.1.0.9 7"]


def test_shared_subnets_come_before_routed_ones() -> None:
    assert order("198.51.100.1 7", "10.1.0.9 7") == ["10.1.0.9 7", "198.51.100.1 7"]


def test_the_publishers_order_decides_between_equals() -> None:
    assert order("10.9.0.9 7", "10.1.0.9 7") == ["10.9.0.9 7", "10.1.0.9 7"]
    assert order("10.1.0.9 7", "10.9.0.9 7") == ["10.1.0.9 7", "10.9.0.9 7"]


def test_the_chosen_interface_goes_before_a_shared_subnet() -> None:
    assert order("10.1.0.9 7", "10.9.0.9 7", interface="ib0") == ["10.9.0.9 7", "10.1.0.9 7"]


def test_unreachable_addresses_are_left_out() -> None:
    assert order("203.0.113.9 7") == []


def test_link_local_gets_this_machines_scope_and_tries_the_link_of_the_same_name_first() -> None:
    assert order("fe80::99%eth1 7") == ["fe80::99%6 7", "fe80::99%2 7"]
    assert order("fe80::99%eth1 7", interface="eth1") == ["fe80::99%6 7"]


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1", "10.0.0.1 0", "10.0.0.1 65536", "10.0.0.1 -4", "host 80", "0.0.0.0 8", ":: 8", "224.0.0.1 8"],
)
def test_malformed_endpoints_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        Endpoint.parse(text)


@given(st.ip_addresses(), st.integers(1, 65535))
def test_endpoints_survive_their_text(ip: IP, port: int) -> None:
    text = f"{ip} {port}"
    try:
        endpoint = Endpoint.parse(text)
    except ValueError:
        plain = getattr(ip, "ipv4_mapped", None) or ip
        assert plain.is_unspecified or plain.is_multicast
        return
    assert Endpoint.parse(endpoint.text()) == endpoint


def test_the_kernels_interfaces_are_read() -> None:
    found = interface_addresses()
    loopback = [a for a in found if a.interface == "lo" and a.ip.version == 4]
    assert [(str(a.ip), a.prefix, a.loopback, a.running) for a in loopback] == [("127.0.0.1", 8, True, True)]
    assert {a.interface for a in found} <= {name for _, name in socket.if_nameindex()}
    for a in found:
        assert a.ip in a.network


def test_the_source_address_is_that_of_the_route() -> None:
    assert str(source_address(Endpoint.parse("127.0.0.1 9"))) == "127.0.0.1"
    assert str(source_address(Endpoint.parse("127.1.2.3 9"))) == "127.0.0.1"
