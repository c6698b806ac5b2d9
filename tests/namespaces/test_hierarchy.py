"""Hosts with several ranks: right results by all ways between hosts, and no more bytes on the wire than with one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectives.bench.namespaces import hosts, run_ranks, why_not

COLLECTIVES = str(Path(__file__).with_name("collectives_rank.py"))
TRAFFIC = str(Path(__file__).with_name("traffic_rank.py"))
SECRET = bytes(range(32))
NBYTES = 8 << 20

_reason = why_not()
pytestmark = pytest.mark.skipif(_reason is not None, reason=str(_reason))


def message(count: int, placement: Sequence[int], program: str) -> list[object]:
    """What each rank of a job prints, rank r being on host placement[r] of `count`."""
    with hosts(count) as made:
        ended = run_ranks([made[host] for host in placement], program, secret=SECRET, timeout=100)
    assert [end.code for end in ended] == [0] * len(ended), "\n".join(end.err for end in ended)
    return [json.loads(end.out) for end in ended]


@pytest.mark.parametrize(
    ("placement", "reported"),
    [
        ((0, 0, 1, 1), "2 with 2 ranks"),
        ((0, 1, 0, 1), "2 with 2 ranks"),
        ((0, 1, 1), "1 with 2 ranks, 1 with 1 rank"),
        ((0, 1, 1, 2, 1, 0), "1 with 3 ranks, 1 with 2 ranks, 1 with 1 rank"),
        ((0, 0, 1, 2, 3), "1 with 2 ranks, 3 with 1 rank"),
    ],
    ids=str,
)
def test_every_collective_is_right(placement: Sequence[int], reported: str) -> None:
    for lines in message(max(placement) + 1, placement, COLLECTIVES):
        assert isinstance(lines, list)
        algorithm, where = lines
        assert algorithm.startswith("algorithm   hierarchical_")  # one that knows of hosts
        assert where == f"hosts       {reported}"


def sent(count: int, placement: Sequence[int]) -> dict[str, list[int]]:
    """By collective, the bytes that each host sent."""
    found = dict(zip(placement, message(count, placement, TRAFFIC), strict=True))  # of one rank of each host
    by_host = [found[host] for host in range(count)]
    assert all(isinstance(each, dict) for each in by_host)
    return {name: [each[name] for each in by_host] for name in by_host[0]}  # type: ignore[index, attr-defined]


@pytest.mark.parametrize("count", [2, 3])
def test_more_ranks_a_host_cost_no_more_wire_bytes(count: int) -> None:
    one = sent(count, range(count))
    assert max(one["allreduce"]) < 1.06 * 2 * (count - 1) / count * NBYTES
    for placement in ([*range(count), *range(count)], [0, 0, *range(1, count)]):
        several = sent(count, placement)
        for name, alone in one.items():
            assert sum(several[name]) <= 1.05 * sum(alone), (name, placement)
            # What is divided among ranks goes to a host as much as it has of them.
            if len(placement) == 2 * count or name not in ("reduce_scatter", "allgather"):
                assert max(several[name]) <= 1.05 * max(alone), (name, placement)
