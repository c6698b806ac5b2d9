"""Which ranks share a host, from what their records and their answers say."""

from __future__ import annotations

import atexit
import dataclasses

import pytest

from collectives.transports import abstract, neighbours
from collectives.transports.host import HostIdentity
from collectives.transports.registry import transport
from collectives.transports.transport import Place, Scope

NAME, SOCKET = abstract.bound()
if SOCKET is not None:
    atexit.register(SOCKET.close)
HERE = HostIdentity.here(NAME)


def like(**changes: object) -> HostIdentity:
    return dataclasses.replace(HERE, **changes)  # type: ignore[arg-type]


ELSEWHERE = like(proof=abstract.name())  # nobody has this name here


@pytest.mark.parametrize(
    ("other", "doubt"),
    [
        (HERE, False),
        (like(pid=1, cookie="c", cpus=1), False),
        (like(boot="another"), True),
        (like(boot=""), True),
        (like(netns=1), True),
        (like(host="elsewhere"), True),  # a clone of one snapshot has our boot id
    ],
)
def test_when_records_leave_a_doubt(other: HostIdentity, doubt: bool) -> None:
    assert neighbours.doubtful([HERE, other]) == neighbours.doubtful([other, HERE]) == doubt
    assert not neighbours.doubtful([other])


def test_two_of_a_hidden_boot_id_are_doubtful() -> None:
    assert neighbours.doubtful([like(boot="")] * 2)
    assert not like(boot="").same_machine(like(boot="", cookie="another process"))


def test_a_proof_goes_with_its_socket() -> None:
    name, bound = abstract.bound()
    assert bound is not None and abstract.is_bound(name)
    bound.close()
    assert not abstract.is_bound(name)


def test_a_proof_is_seen_in_its_namespace_alone() -> None:
    assert neighbours.seen(2, [ELSEWHERE, HERE, HERE]) == 1
    assert neighbours.seen(0, [HERE, ELSEWHERE]) == 0
    assert neighbours.seen(1, [HERE, like(proof="")]) == -1


def groups(everyone: list[HostIdentity], answers: list[int]) -> tuple[list[int], list[int]]:
    """By rank, the first rank of its namespace, and of its machine."""
    found = neighbours.settled(everyone, answers)
    same_network = [[a.same_network(b) for b in found].index(True) for a in found]
    return same_network, [[a.same_machine(b) for b in found].index(True) for a in found]


@pytest.mark.parametrize(
    ("boots", "netns", "answers", "networks", "machines"),
    [
        (["a", "b", "c"], [1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]),  # nspawn on the host's network
        (["", "", ""], [0, 0, 0], [0, 0, 2], [0, 0, 2], [0, 0, 2]),  # sandboxes
        (["a", "a", "b"], [1, 2, 1], [0, 1, 2], [0, 1, 2], [0, 0, 2]),  # two containers of one machine, and another
        (["a", "a", "b", ""], [1, 2, 2, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]),  # by way of others
        (["a", "a", "b", ""], [1, 1, 1, 1], [-1, -1, -1, -1], [0, 0, 2, 3], [0, 0, 2, 3]),  # no abstract sockets
        (["a", "b", "a"], [1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 0, 0]),
    ],
)
def test_what_answers_settle(
    boots: list[str], netns: list[int], answers: list[int], networks: list[int], machines: list[int]
) -> None:
    everyone = [like(boot=boot, netns=n) for boot, n in zip(boots, netns, strict=True)]
    assert groups(everyone, answers) == (networks, machines)


@pytest.mark.parametrize("answers", [[1, 1], [0, 2], [-2, 0]])
def test_answers_that_cannot_be(answers: list[int]) -> None:
    with pytest.raises(ValueError, match="claims to see rank"):
        neighbours.settled([HERE, HERE], answers)


class Routes:
    """Takes what a transport tells the engine."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def route(self, rank: int, scheme: str, addresses: list[str], host: str) -> None:
        self.found = addresses


def test_loopback_is_the_last_resort_where_nothing_tells_hosts_apart() -> None:
    tcp = transport("tcp")
    unknown = [Place(rank, like(boot=boot, proof=""), ("127.0.0.1 7",)) for rank, boot in enumerate(("a", "b"))]
    assert tcp.reaches(*unknown) is None
    routes = Routes()
    tcp.route(routes, unknown[0], unknown[1], Scope(False), 1.0)  # type: ignore[arg-type]
    assert routes.found == ["127.0.0.1 7"]
    proven = [Place(rank, like(boot=boot, netns=rank), ("127.0.0.1 7",)) for rank, boot in enumerate(("a", "b"))]
    assert "COLLECTIVES_SECRET_FILE" in str(tcp.reaches(*proven))
