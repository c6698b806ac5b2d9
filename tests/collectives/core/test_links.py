"""Which transport connects which ranks, from their records; and records that make no sense."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator
from collectives.calls.moves import Deadline
from collectives.core import family as family_module
from collectives.core.family import Origin
from collectives.core.links import Endpoints, Linked, Member, Policy, context, decode, link, scheme_between, slowest
from collectives.native.errors import ConfigMismatch, TransportUnavailable
from collectives.transports import abstract
from collectives.transports.host import HostIdentity
from collectives.transports.transport import Scope
from tests.collectives.groups import nothing_left, outcomes
from tests.rendezvous.threads import together

AUTO = Policy("auto", Scope(network=True), b"s" * 32)
HERE = HostIdentity.here(abstract.name())


def member(addresses: Mapping[str, tuple[str, ...]], **identity: Any) -> Member:
    return Member(dataclasses.replace(HERE, **identity), addresses)


@pytest.fixture(scope="module")
def endpoints() -> Any:
    """Two ranks' listeners; a third of this process is never there."""
    with nothing_left():
        pair = Endpoints(AUTO), Endpoints(AUTO)
        yield pair
        for opened in pair:
            opened.close()


def test_each_pair_gets_the_shortest_way_and_both_sides_agree(endpoints: Any) -> None:
    far = {"tcp": ("198.51.100.7 80",), "inproc": ("x",), "shm": ("pycollectives-" + "0" * 32,)}
    members = [
        endpoints[0].member,
        endpoints[1].member,
        dataclasses.replace(endpoints[0].member, identity=dataclasses.replace(HERE, cookie="another process")),
        member(far, boot="another machine", netns=1, cookie="far away"),
        dataclasses.replace(endpoints[1].member, identity=dataclasses.replace(HERE, netns=1, cookie="a container")),
    ]
    expected = {
        (0, 1): "inproc",
        (0, 2): "shm",
        (1, 2): "shm",
        (0, 3): "tcp",
        (2, 3): "tcp",
        (0, 4): "tcp",
        (3, 4): "tcp",
    }
    for (a, b), scheme in expected.items():
        assert scheme_between(a, b, members, AUTO, {}) == scheme
        assert scheme_between(b, a, members, AUTO, {}) == scheme


def test_ranks_that_nothing_connects_are_told_why(endpoints: Any) -> None:
    near = Policy("auto", Scope(network=False), b"")
    members = [member({"tcp": ("127.0.0.1 80",)}), member({"tcp": ("127.0.0.1 80",)}, boot="another", cookie="c")]
    with pytest.raises(TransportUnavailable) as caught:
        scheme_between(0, 1, members, near, {"shm": "no memfd here"})
    message = str(caught.value)
    assert "rank 0 cannot reach rank 1; inproc: rank 0" in message
    assert "shm: no memfd here" in message
    assert "tcp: rank 0" in message and "needs a secret" in message


def test_the_slowest_transport_names_the_group() -> None:
    assert slowest(["self"]) == "self"
    assert slowest(["inproc", "self"]) == "inproc"
    assert slowest(["shm", "self", "inproc"]) == "shm"
    assert slowest(["self", "tcp", "shm"]) == "tcp"
    assert slowest(["self", "tcp", "pigeon"]) == "pigeon"


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"host": {}, "addresses": {}},
        {"host": HERE.to_json()},
        {"host": HERE.to_json(), "addresses": []},
        {"host": HERE.to_json(), "addresses": {"tcp": "127.0.0.1 80"}},
        {"host": HERE.to_json(), "addresses": {"tcp": [80]}},
        {"host": HERE.to_json(), "addresses": {"tcp": ["x" * 300]}},
        {"host": HERE.to_json(), "addresses": {str(i): [] for i in range(17)}},
        {"host": {**HERE.to_json(), "cpus": "no"}, "addresses": {}},
    ],
)
def test_records_that_make_no_sense(record: Any) -> None:
    with pytest.raises(ConfigMismatch, match="rank 3 published something that makes no sense"):
        decode(3, record)


def test_records_survive_their_encoding(endpoints: Any) -> None:
    assert decode(0, endpoints[0].member.to_json()) == endpoints[0].member


@pytest.mark.parametrize("addresses", [("nonsense",), ("127.0.0.1 80",) * 40])
def test_addresses_that_make_no_sense(addresses: tuple[str, ...]) -> None:
    members = [member({"tcp": ("127.0.0.1 80",)}), member({"tcp": addresses})]
    with pytest.raises(ConfigMismatch, match="rank 1 published"):
        scheme_between(0, 1, members, Policy("tcp", Scope(network=False), b""), {})


def test_contexts_differ() -> None:
    names = {context(run, epoch, path) for run in ("a", "b") for epoch in (0, 1) for path in ("0", "0.dup1")}
    assert len(names) == 8
    assert {len(name) for name in names} == {16}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_families_carry_links(host: str) -> None:
    policy = Policy("tcp", Scope(network=True), b"s" * 32)
    opened = [Endpoints(policy) for _ in range(2)]
    ports = [int(d.member.addresses["tcp"][0].split()[1]) for d in opened]
    members = [member({"tcp": (f"{host} {port}",)}) for port in ports]

    def rank(number: int) -> float:
        linked = link(number, members, opened[number], policy, context("run", 0, "0"), 0, Deadline(20))
        with Communicator(number, linked, Origin("run", 0, "0", policy), "test", 20.0, lambda: None) as comm:
            return float(comm.allreduce(np.array(1.5)))

    with nothing_left():
        assert [o.value for o in together([lambda: rank(0), lambda: rank(1)])] == [3.0, 3.0]
        assert [linked.member.identity for linked in opened] == [HERE, HERE]


def test_a_rank_that_cannot_listen_keeps_nobody_from_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    unlucky: list[int] = []

    split = Endpoints.split

    def failing(parent: Endpoints) -> Endpoints:
        if threading.get_ident() in unlucky:
            raise OSError("out of luck")
        return split(parent)

    monkeypatch.setattr(Endpoints, "split", failing)

    def body(comm: Communicator) -> str:
        if comm.rank == 1:
            unlucky.append(threading.get_ident())
        comm.barrier()
        with pytest.raises((OSError, collectives.CollectiveError)) as caught:
            comm.dup()
        assert comm.allreduce(np.array(1)) == 3
        return f"{type(caught.value).__name__}: {caught.value}"

    with nothing_left():
        found = [o.value for o in outcomes(3, body)]
    assert found == [
        "CollectiveError: rank 1 cannot join: OSError: out of luck",
        "OSError: out of luck",
        "CollectiveError: rank 1 cannot join: OSError: out of luck",
    ]


def test_a_rank_that_cannot_make_its_group_keeps_nobody_from_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    unlucky: list[int] = []

    def failing(rank: int, *arguments: Any) -> Linked:
        if threading.get_ident() in unlucky:
            raise OSError("out of luck")
        return link(rank, *arguments)

    monkeypatch.setattr(family_module, "link", failing)

    def body(comm: Communicator) -> str:
        if comm.rank == 1:
            unlucky.append(threading.get_ident())
        comm.barrier()
        with pytest.raises((OSError, collectives.CollectiveError)) as caught:
            comm.dup()
        assert comm.allreduce(np.array(1)) == 3
        return f"{type(caught.value).__name__}: {caught.value}"

    with nothing_left():
        found = [o.value for o in outcomes(3, body, transport="shm")]
    assert found == [
        "CollectiveError: rank 1 cannot join: OSError: out of luck",
        "OSError: out of luck",
        "CollectiveError: rank 1 cannot join: OSError: out of luck",
    ]


def test_the_transport_of_a_rank_that_has_ended_is_the_one_it_would_have_had(endpoints: Any) -> None:
    """Its links then report to all ranks that it is gone."""
    closed = {"shm": ("pycollectives-" + "0" * 32,), "tcp": endpoints[0].member.addresses["tcp"]}
    members = [endpoints[0].member, member(closed, cookie="another process")]
    assert scheme_between(0, 1, members, AUTO, {}) == "tcp"  # the socket is not there: another machine
    assert scheme_between(0, 1, members, AUTO, {}, lambda rank: rank == 1) == "shm"
