"""The conformance suite between hosts: four, with one and with two ranks each, over tcp and shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from collectives.bench.namespaces import Host, hosts, received_bytes, why_not
from collectives.rendezvous import secret
from tests.collectives.conformance.case import Case
from tests.collectives.conformance.cases import COLLECTIVES, LARGEST
from tests.collectives.conformance.ranks import Job, Rank, everyone, failures, processes
from tests.depth import LONG

_reason = why_not()
pytestmark = pytest.mark.skipif(_reason is not None, reason=str(_reason))


@dataclass(frozen=True)
class Spread:
    """Ranks of one group, and the hosts that they are on."""

    hosts: Sequence[Host]
    ranks: Sequence[Rank]
    which: dict[str, Any]  # cases, as for `cases`


PER_HOST = 2
HOSTS = 4


@pytest.fixture(scope="module")
def everywhere() -> Iterator[tuple[Sequence[Host], Sequence[Rank]]]:
    """Hosts, and processes that stay for all groups: process p is on host p // PER_HOST."""
    with hosts(HOSTS) as made, processes([host.enter for host in made for _ in range(PER_HOST)]) as ranks:
        yield made, ranks


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(((0, 1, 2, 3), None, LONG), id="1 rank each"),
        pytest.param(((0, 0, 1, 1, 2, 2, 3, 3), None, True), id="2 ranks each"),
        pytest.param(((0, 1, 2, 3, 0, 1, 2, 3), 1000, LONG), id="2 ranks each in turn, segments of 1000"),
        pytest.param(((0, 0, 1, 1, 2, 2, 3, 3), 100, LONG), id="2 ranks each, segments of 100"),
    ],
)
def spread(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    everywhere: tuple[Sequence[Host], Sequence[Rank]],
) -> Iterator[Spread]:
    """Rank r on host placement[r]; the segment as in `init`; whether to be thorough."""
    placement, segment, thorough = request.param
    made, workers = everywhere
    size = len(placement)
    directory = tmp_path_factory.mktemp("hosts")
    secret.write(directory / "secret", secret.mint())
    ranks = [workers[PER_HOST * host + placement[:rank].count(host)] for rank, host in enumerate(placement)]
    job = Job((directory / "store").as_uri(), "auto", size, "hosts", str(directory / "secret"), segment)
    assert not failures(everyone(ranks, [job.command(rank) for rank in range(size)]))
    yield Spread(made, ranks, {"thorough": thorough, "largest": LARGEST.get(segment)})
    assert not failures(everyone(ranks, [{"do": "leave"}] * size))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collective(spread: Spread, collective: str) -> None:
    command = {"do": "all", "collective": collective, **spread.which}
    wrong = failures(everyone(spread.ranks, [command] * len(spread.ranks)))
    assert not wrong, wrong


def test_bytes_go_between_hosts_and_inside_them_through_memory(spread: Spread) -> None:
    before = [received_bytes(host, "net0") for host in spread.hosts]
    case = Case("allreduce", "float64", shape=(70_001,))
    assert not failures(everyone(spread.ranks, [{"do": "case", "case": case.to_json()}] * len(spread.ranks)))
    for host, bytes_before in zip(spread.hosts, before, strict=True):
        assert received_bytes(host, "net0") - bytes_before > 8 * 70_001
        assert received_bytes(host, "lo") == 0
