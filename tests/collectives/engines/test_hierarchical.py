"""Algorithms that know of hosts: what crosses the network, and what is said when one is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from collectives.algorithms import algorithms, get, registry
from collectives.schedule import IN, Algorithm, Builder, Copy, Layout, Schedule, Send, VerificationError, verify
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.layout import apart, even
from collectives.schedule.verification import sample_layouts

HIERARCHICAL = [a for name in COLLECTIVES for a in algorithms(name) if a.hosts]
WHOLE = {"hierarchical_doubling", "hierarchical_binomial", "hierarchical_chain"}  # each message is all of the data


def between_hosts(schedules: Iterable[Schedule], layout: Layout) -> Counter[tuple[int, int]]:
    """Bytes sent from host to host, of 2520 * size bytes in the larger buffer of each rank."""
    found: Counter[tuple[int, int]] = Counter()
    for s in schedules:
        blocks = max(s.grid)
        for step in s.steps:
            if isinstance(step, Send):
                for peer in step.peers:
                    pair = layout.hosts[s.rank], layout.hosts[peer]
                    if pair[0] != pair[1]:
                        found[pair] += 2520 * s.size * step.chunk.count // blocks
    return found


def group(a: Algorithm, layout: Layout, root: int = 0) -> list[Schedule]:
    return [a(rank, layout.size, root, layout) for rank in range(layout.size)]


@pytest.mark.parametrize("hosts", [2, 3, 4, 5])
@pytest.mark.parametrize("a", HIERARCHICAL, ids=str)
def test_several_ranks_a_host_cost_no_more_wire_bytes_than_one(a: Algorithm, hosts: int) -> None:
    alone = between_hosts(group(a, apart(hosts)), apart(hosts))
    for each in (2, 3):
        layouts = [even(hosts * each, each)]
        if a.collective not in ("scan", "exscan"):  # for which the order of ranks counts
            layouts.append(Layout.of(rank % hosts for rank in range(hosts * each)))
        for layout in layouts:
            found = between_hosts(group(a, layout), layout)
            assert found == Counter({pair: each * nbytes for pair, nbytes in alone.items()})  # of each times the data


@pytest.mark.parametrize("layout", [lo for lo in sample_layouts(11) if lo.nested], ids=str)
@pytest.mark.parametrize("a", [a for a in HIERARCHICAL if a.collective == "allreduce"], ids=str)
def test_unequal_hosts_cost_no_more_wire_bytes_than_one_rank_each(a: Algorithm, layout: Layout) -> None:
    hosts = len(layout.members)
    alone, found = between_hosts(group(a, apart(hosts)), apart(hosts)), between_hosts(group(a, layout), layout)
    assert {pair: nbytes * hosts for pair, nbytes in found.items()} == {
        pair: nbytes * layout.size for pair, nbytes in alone.items()
    }


def test_every_block_of_an_allgather_comes_to_every_host_once() -> None:
    for a in algorithms("allgather"):
        for layout in sample_layouts(9):
            arriving: Counter[int] = Counter()
            for (_, to), nbytes in between_hosts(group(a, layout), layout).items():
                arriving[to] += nbytes // 2520
            foreign = {host: 9 - len(ranks) for host, ranks in enumerate(layout.members) if len(ranks) < 9}
            if a.hosts:
                assert arriving == foreign, (a, layout)


def test_a_flat_ring_costs_more() -> None:
    layout = Layout.of(rank % 2 for rank in range(6))
    flat, nested = (
        sum(between_hosts(group(get("allreduce", name), layout), layout).values())
        for name in ("ring", "hierarchical_ring")
    )
    assert flat == 5 * nested


@pytest.mark.parametrize("a", [a for a in HIERARCHICAL if a.name not in WHOLE | {"hierarchical_circulant"}], ids=str)
def test_all_ranks_of_a_host_send_the_same(a: Algorithm) -> None:
    layout = even(12, 4)
    sent = [between_hosts([s], layout).total() for s in group(a, layout)]
    assert len(set(sent)) == 1


@pytest.mark.parametrize("a", HIERARCHICAL, ids=str)
def test_on_one_host_nothing_crosses(a: Algorithm) -> None:
    layout = even(5, 5)
    assert not between_hosts(group(a, layout), layout)


def test_what_is_wrong_in_one_layout_is_said_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", {name: dict(known) for name, known in registry._registry.items()})

    @registry.algorithm("allgather", hosts=True)
    def careless(rank: int, size: int, layout: Layout) -> Schedule:
        """Forgets to send to other hosts."""
        b = Builder("allgather", "careless", rank, size, grid=(1, size))
        b.copy(b.out(rank), b.inp())
        if layout.beside(rank):
            b.send(layout.beside(rank), b.inp())
        for peer in layout.beside(rank):
            b.recv(peer, b.out(peer))
        return b.build()

    verify(careless, [4], layouts=lambda size: [even(size, size)])
    with pytest.raises(VerificationError, match=r"2 hosts with ranks 0,1 \| 2,3: OUT\[2\] ends with nothing"):
        verify(careless, [4], layouts=lambda size: [even(size, 2)])


def test_samples_are_of_every_sort() -> None:
    for size in range(1, 70):
        samples = sample_layouts(size)
        assert len(set(samples)) == len(samples)
        assert all(layout.size == size for layout in samples)
    members = [layout.members for layout in sample_layouts(8)]
    assert any(len(m) == 1 for m in members) and any(len(m) == 8 for m in members)
    assert any(len({len(ranks) for ranks in m}) > 1 for m in members)
    assert any(ranks != tuple(range(ranks[0], ranks[-1] + 1)) for m in members for ranks in m)


def test_a_rank_alone_keeps_what_it_has() -> None:
    for a in HIERARCHICAL:
        (only,) = group(a, apart(1))
        assert all(isinstance(step, Copy) for step in only.steps)
        copied = {step.src.buffer for step in only.steps if isinstance(step, Copy)}
        assert copied == (set() if a.collective in ("broadcast", "exscan") else {IN})
