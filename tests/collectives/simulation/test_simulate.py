"""The simulator: its model against formulas, symmetry against playing every rank, costs and what cannot be."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import algorithms, get
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.check import VerificationError
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.form import Builder, Schedule
from collectives.simulation import training
from collectives.simulation.cost import NAMES, Costs, rate, seconds
from collectives.simulation.simulate import Prediction, TooLargeError, simulate
from collectives.simulation.topology import Switches, Topology
from tests.depth import LONG

KIB, MIB = 1 << 10, 1 << 20
EVERY = [a for name in COLLECTIVES for a in algorithms(name) if a.function.__module__.startswith("collectives.")]
PLACES = {
    "apart": Topology(),
    "hosts of 4": Topology(4),
    "hosts of 3": Topology(3),
    "switches": Topology(2, levels=(Switches(2, 2.0), Switches(2, 1.5))),
    "two cores": Topology(4, cores=2),
}
# Nothing takes time but the wire between hosts.
WIRE = Costs(
    latency=0,
    overhead=0,
    hop=0,
    inside_latency=0,
    inside_overhead=0,
    call=0,
    bandwidth=1e9,
    inside_bandwidth=1e18,
    memory_bandwidth=1e18,
    reduce_bandwidth=1e18,
)


def both(known: Algorithm, ranks: int, nbytes: int, place: Topology) -> tuple[Prediction, Prediction]:
    return simulate(known, ranks, nbytes, place), simulate(known, ranks, nbytes, place, symmetric=False)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)  # varies fastest: schedules are made once for all places
@pytest.mark.parametrize("known", EVERY, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 5, 8, 16] if LONG else [2, 5, 8])
def test_symmetry_changes_nothing(known: Algorithm, place: Topology, ranks: int) -> None:
    for nbytes in (8, 100_000):
        quick, full = both(known, ranks, nbytes, place)
        # Where in a chunk the data of another step begins may differ between ranks that count as alike.
        assert quick.seconds == pytest.approx(full.seconds, rel=0.04)
        assert (quick.rounds, quick.sent) == (full.rounds, full.sent)


@pytest.mark.parametrize(
    ("collective", "name"), [("allreduce", "ring"), ("allgather", "ring"), ("barrier", "dissemination")]
)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_repetitions_are_skipped_without_a_difference(collective: str, name: str, place: Topology) -> None:
    for nbytes in (0, 48 * KIB, 48 * MIB):
        quick, full = both(get(collective, name), 48, nbytes, place)
        assert quick.seconds == pytest.approx(full.seconds, rel=1e-9)
        assert quick.share == pytest.approx(full.share, rel=1e-9)


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather"])
@pytest.mark.parametrize(("per", "levels"), [(2, ()), (4, ()), (4, (Switches(4, 2.0),))])
def test_all_hosts_are_alike_in_a_ring_of_hosts(collective: str, per: int, levels: tuple[Switches, ...]) -> None:
    """Messages inside a host are sent many rounds before a step receives them, and rounds are skipped all the same."""
    known = get(collective, "hierarchical_ring")
    for nbytes in (0, 48 * KIB, 48 * MIB):
        quick, full = both(known, 24 * per, nbytes, Topology(per, levels=levels))
        assert quick.seconds == pytest.approx(full.seconds, rel=1e-9)
        assert quick.rounds == full.rounds
        assert quick.sent == pytest.approx(full.sent)


@pytest.mark.parametrize("known", [a for a in EVERY if a.hosts], ids=str)
@pytest.mark.parametrize("place", [Topology(2), Topology(3), Topology(4, cores=2), Topology(8)], ids=str)
def test_the_symmetry_of_hosts_gives_the_same_bits(known: Algorithm, place: Topology) -> None:
    for hosts in (2, 3, 5) if LONG else (2, 3):
        ranks = hosts * place.ranks_per_host
        for nbytes in (8, 100_000) if known.sizes(ranks) else ():
            quick, full = both(known, ranks, nbytes, place)
            if known.name != "hierarchical_circulant":
                assert quick == full
            # There, a message of some ranks goes round the end of the buffer, and its data lies elsewhere in the chunk.
            assert quick.seconds == pytest.approx(full.seconds, rel=0.04)


@pytest.mark.parametrize("flipped", [False, True])
def test_the_order_in_which_steps_are_listed_is_not_the_order_of_rounds(flipped: bool) -> None:
    """Every rank lists what it receives before what it sends, or behind it: nobody waits for the listed order."""

    def swap(rank: int, size: int) -> Schedule:
        b = Builder("allgather", "swap", rank, size, grid=(1, size))
        for away in (1, 2, 3):
            parts = [
                lambda away=away: b.recv((rank - away) % size, b.out((rank - away) % size)),
                lambda away=away: b.send((rank + away) % size, b.inp() if away == 1 else b.out((rank - 1) % size)),
            ]
            for part in parts if flipped else reversed(parts):
                part()
        return b.build()

    known = Algorithm("allgather", "swap", swap)
    for place in PLACES.values():
        quick, full = both(known, 12, 100_000, place)
        assert quick == full and quick.rounds == 2


def test_steps_that_wait_for_each_other_are_refused() -> None:
    def stuck(rank: int, size: int) -> Schedule:
        b = Builder("allgather", "stuck", rank, size, grid=(1, size))
        b.recv((rank - 1) % size, b.out())
        b.send((rank + 1) % size, b.out())
        return b.build()

    with pytest.raises(ValueError, match="wait for each other"):
        simulate(Algorithm("allgather", "stuck", stuck), 4, 8)


def test_hosts_with_unequal_numbers_of_ranks_are_no_family() -> None:
    for name in ("hierarchical_ring", "hierarchical_circulant"):
        quick, full = both(get("allreduce", name), 22, MIB, Topology(4))
        assert quick.seconds == pytest.approx(full.seconds, rel=0.04)


@pytest.mark.parametrize("name", ["hierarchical_ring", "hierarchical_circulant", "hierarchical_doubling"])
def test_many_hosts_are_not_too_many(name: str) -> None:
    found = simulate(get("allreduce", name), 16384, 100 * MIB, Topology(8))
    assert found.seconds > 2 * 2047 / 2048 * 100 * MIB / 12.5e9  # what the card of each host sends and receives


@pytest.mark.parametrize("name", ["binomial", "tree"])
@pytest.mark.parametrize("ranks", [97, 128, 250])
def test_families_of_a_tree_are_those_of_all_its_ranks(name: str, ranks: int) -> None:
    for collective in ("broadcast", "reduce") if name == "binomial" else ("allreduce",):
        quick, full = both(get(collective, name), ranks, MIB, Topology(4))
        assert quick.seconds == pytest.approx(full.seconds, rel=1e-9)


@pytest.mark.parametrize("root", [0, 3, 6])
def test_a_root_may_be_anywhere(root: int) -> None:
    for collective, name in (("broadcast", "binomial"), ("gather", "binomial"), ("scatter", "linear")):
        found = [
            simulate(get(collective, name), 7, 64 * KIB, Topology(), root=r, symmetric=s).seconds
            for r, s in ((root, True), (root, False), (0, False))
        ]
        assert found[0] == pytest.approx(found[1]) == pytest.approx(found[2])


# --- the model


@pytest.mark.parametrize("ranks", [2, 4, 7, 16])
def test_a_ring_of_hosts_takes_what_the_wire_takes(ranks: int) -> None:
    nbytes = 64 * MIB
    found = simulate(get("allreduce", "ring"), ranks, nbytes, Topology(), WIRE)
    bound = 2 * (ranks - 1) / ranks * nbytes / 1e9
    assert bound <= found.seconds * (1 + 1e-9) <= 1.2 * bound
    assert found.bottleneck == "network card" and found.sent == pytest.approx(bound * 1e9)


def test_small_messages_cost_latency() -> None:
    costs = Costs(latency=1e-3, hop=0)
    found = simulate(get("allreduce", "recursive_doubling"), 64, 8, Topology(), costs)
    assert found.seconds == pytest.approx(6e-3, rel=0.01)
    assert (found.rounds, found.bottleneck) == (6, "latency")


def test_slices_flow_through_a_tree() -> None:
    """Each of several levels adds a slice, not the whole message."""
    costs = Costs(**{**{name: getattr(WIRE, name) for name in NAMES}, "slice": 64.0 * KIB})
    one = simulate(get("broadcast", "binomial"), 2, 64 * MIB, Topology(), costs).seconds
    chain = simulate(get("broadcast", "hierarchical_chain"), 8, 64 * MIB, Topology(), costs).seconds
    assert one < chain < 1.05 * one


def test_ranks_of_a_host_share_its_card() -> None:
    """All ranks of one host send to those of another: eight at once take eight times as long as one."""
    times = [
        simulate(get("alltoall", "direct"), 2 * per, 2 * per * MIB, Topology(per), WIRE).seconds / per for per in (1, 8)
    ]
    assert times[1] == pytest.approx(8 * times[0], rel=0.01)
    halved = simulate(get("alltoall", "direct"), 16, 16 * MIB, Topology(8, cards=2), WIRE).seconds / 8
    assert halved == pytest.approx(times[1] / 2, rel=0.02)


def test_oversubscribed_links_are_the_bottleneck() -> None:
    known = get("alltoall", "direct")
    free, narrow = (simulate(known, 16, 16 * MIB, Topology(levels=(Switches(4, ratio),)), WIRE) for ratio in (1.0, 8.0))
    assert free.bottleneck == "network card" and narrow.bottleneck == "switch level 1"
    # 12 of a rank's 15 messages leave its switch.
    assert narrow.seconds == pytest.approx(8 * free.seconds * 12 / 15, rel=0.1)


def test_ranks_share_cores() -> None:
    known, costs = get("allreduce", "two_shot"), Costs(inside_latency=0, call=0, memory_bandwidth=1e18)
    own, shared = (simulate(known, 8, 8 * MIB, Topology(8, cores=cores), costs).seconds for cores in (0, 2))
    assert shared == pytest.approx(4 * own, rel=0.1)


def test_a_shared_core_switches_between_its_ranks() -> None:
    def more(name: str, ranks: int, cores: int, **costs: float) -> float:
        known, place = get("allreduce", name), Topology(ranks, cores=cores)
        return simulate(known, ranks, 8, place, Costs(**costs)).seconds - simulate(known, ranks, 8, place).seconds

    assert more("one_shot", 4, 4, switch=1e-3, stagger=1e-3) == 0
    assert more("one_shot", 4, 2, switch=1e-3) == pytest.approx(2e-3, rel=0.01)  # 2 ranks, each with another one
    assert more("recursive_doubling", 8, 2, switch=1e-3) == pytest.approx(3 * 4 * 3e-3, rel=0.01)  # in 3 rounds
    assert more("one_shot", 8, 2, stagger=1e-3) == pytest.approx(6e-3)  # for each pair of 4 ranks
    assert more("one_shot", 3, 2, stagger=1e-3) == pytest.approx(1e-3)


@pytest.mark.parametrize("known", [a for a in EVERY if a.collective in ("allreduce", "broadcast")], ids=str)
def test_symmetry_changes_nothing_where_cores_switch(known: Algorithm) -> None:
    costs = Costs(switch=2e-6, stagger=1e-6, cached=2.0)
    for nbytes in (8, 100_000):
        quick, full = (
            simulate(known, 8, nbytes, Topology(4, cores=2), costs, symmetric=symmetric) for symmetric in (True, False)
        )
        assert quick.seconds == pytest.approx(full.seconds, rel=0.04)


def test_what_is_added_up_in_one_place() -> None:
    known, costs = get("allreduce", "two_shot"), Costs(pool_bandwidth=1e6, board_switch=1e-3, call=0, inside_overhead=0)
    apart = Costs(board_switch=1e-3, call=0, inside_overhead=0)

    def times(ranks: int, nbytes: int, place: Topology) -> list[float]:
        return [simulate(known, ranks, nbytes, place, c).seconds for c in (costs, apart)]

    # A rank adds all and gets all, whoever else is on its core does the same.
    assert times(2, MIB, Topology(2))[0] == pytest.approx(MIB / 1e6, rel=1e-3)
    assert times(8, MIB, Topology(8, cores=2))[0] == pytest.approx(4 * MIB / 1e6 + 3 * 3e-3, rel=1e-3)
    # Not what is small, between hosts, or among so many that most would have to wait.
    for ranks, nbytes, place in ((2, 4095, Topology(2)), (4, MIB, Topology(2)), (9, MIB, Topology(9))):
        pooled, plain = times(ranks, nbytes, place)
        assert pooled == plain


def test_what_is_done_on_a_board() -> None:
    rates = {"inside_bandwidth": 1e6, "reduce_bandwidth": 1e5, "call": 0.0}
    board = Costs(board=1.0, board_overhead=0.1, board_switch=10.0, stagger=100.0, switch=100.0, **rates)
    n, crowded = 4096, Topology(8, cores=2)

    def time(collective: str, name: str, ranks: int, nbytes: int, place: Topology, costs: Costs = board) -> float:
        return simulate(get(collective, name), ranks, nbytes, place, costs).seconds

    # Saying it, and taking all of each other rank's; whose turns come one after another.
    assert time("allreduce", "one_shot", 4, n, Topology(4)) == pytest.approx(1.3 + n / 1e6 + 3 * n / 1e5)
    assert time("allgather", "direct", 8, n, crowded) == pytest.approx(31.7 + 4 * n / 1e6)
    # On a core that they share three say it, the fourth adds that to its own, and each adds the other core's sum.
    assert time("allreduce", "one_shot", 8, n, crowded) == pytest.approx(31.4 + 3 * n / 1e6 + (3 + 4) * n / 1e5)
    # With no other core they copy the sum.
    alone = Topology(3, cores=1)
    assert time("allreduce", "one_shot", 3, n, alone) == pytest.approx(21.2 + 5 * n / 1e6 + 2 * n / 1e5)
    # In an allgather a rank publishes only a part.
    assert time("allgather", "direct", 4, n, Topology(4)) == pytest.approx(1.3 + n / 1e6)
    # Not what is large, between hosts, or not one round.
    plain = Costs(stagger=100.0, switch=100.0, **rates)
    for name, nbytes, place in (
        ("one_shot", n + 1, Topology(8)),
        ("one_shot", (128 << 10) + 1, crowded),
        ("one_shot", n, Topology(4)),
        ("two_shot", n, Topology(8)),
    ):
        assert time("allreduce", name, 8, nbytes, place) == time("allreduce", name, 8, nbytes, place, plain)


def test_a_message_beyond_a_line_is_staged() -> None:
    known, place = get("broadcast", "direct"), Topology(2)
    short, long = (
        simulate(known, 2, nbytes, place, Costs(staging=1e-3)).seconds - simulate(known, 2, nbytes, place).seconds
        for nbytes in (56, 57)
    )
    assert short == 0 and long == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "messages"),
    [
        ("broadcast", "direct", 2, 1),
        ("broadcast", "direct", 4, 3),
        ("allreduce", "one_shot", 2, 2),
        ("allreduce", "star", 2, 2),
    ],
)
def test_messages_of_a_host_pass_one_at_a_time(collective: str, algorithm: str, ranks: int, messages: int) -> None:
    """Of an exchange, one message waits for the other; one after another they take as long."""
    known, place, costs = get(collective, algorithm), Topology(ranks), replace(WIRE, inside_gap=1e-3)
    assert simulate(known, ranks, 8, place, costs).seconds == pytest.approx(1e-3 * messages, rel=1e-3)


def test_what_a_cache_holds_is_faster() -> None:
    known, place = get("allreduce", "one_shot"), Topology(2)
    costs = Costs(cached=2.0, cache=float(MIB), call=0, inside_latency=0, inside_overhead=0, memory_bandwidth=1e18)
    plain = Costs(call=0, inside_latency=0, inside_overhead=0, memory_bandwidth=1e18)
    gains = [
        simulate(known, 2, nbytes, place, plain).seconds / simulate(known, 2, nbytes, place, costs).seconds
        for nbytes in (64 * KIB, MIB, 2 * MIB, 64 * MIB)
    ]
    assert gains == pytest.approx([2, 2, 4 / 3, 1], rel=0.02)


@given(st.sampled_from([a for a in EVERY if a.collective == "allreduce"]), st.integers(2, 12), st.integers(0, 22))
def test_more_costs_more(known: Algorithm, ranks: int, power: int) -> None:
    place, nbytes = Topology(2), 1 << power
    now = simulate(known, ranks, nbytes, place).seconds
    assert now <= simulate(known, ranks, 4 * nbytes, place).seconds * (1 + 1e-9)
    assert now <= simulate(known, ranks, nbytes, place, Costs(latency=5e-6)).seconds * (1 + 1e-9)
    assert math.isfinite(now) and now > 0


# --- large groups; how long they take is for the benchmark to say


def test_a_large_ring_and_a_large_tree() -> None:
    ring = simulate(get("allreduce", "ring"), 4096, 64 * MIB, Topology(8))
    assert ring.rounds == 2 * 4095 and ring.seconds > 2 * 64 * MIB / 12.5e9
    tree = simulate(get("broadcast", "binomial"), 100_000, MIB, Topology(8))
    assert tree.rounds == 16 and tree.seconds > MIB / 12.5e9


# --- what cannot be


def test_what_an_algorithm_does_not_do() -> None:
    paired = Algorithm("barrier", "paired", get("barrier", "dissemination").function, sizes=lambda size: size % 2 == 0)
    with pytest.raises(ValueError, match="not for 3 ranks"):
        simulate(paired, 3, 8)
    with pytest.raises(ValueError, match="no number of bytes"):
        simulate(paired, 2, -1)


def test_schedules_that_do_not_fit_together_are_refused() -> None:
    def deaf(rank: int, size: int, root: int = 0) -> Schedule:
        b = Builder("broadcast", "deaf", rank, size, grid=(0, 1), root=root)
        if rank == root:
            b.send([r for r in range(size) if r != root], b.out())
        elif rank != size - 1:
            b.recv(root, b.out())
        return b.build()

    for symmetric in (True, False):
        with pytest.raises(VerificationError, match="message"):
            simulate(Algorithm("broadcast", "deaf", deaf), 6, 8, symmetric=symmetric)


def test_what_is_too_large_is_said() -> None:
    with pytest.raises(TooLargeError, match="too large"):
        simulate(get("alltoall", "pairwise"), 1 << 16, MIB)


# --- costs


def test_costs_as_text() -> None:
    assert Costs.from_text(Costs().to_text()) == Costs()
    found = Costs.from_text("# of this cluster\nlatency = 1.5us # measured\n\nbandwidth=100Gbit\nslice = 64KiB\n")
    assert found == Costs(latency=1.5e-6, bandwidth=12.5e9, slice=65536.0)


@given(st.floats(1e-9, 1e3), st.floats(1, 1e15))
def test_costs_survive_their_text(time: float, bandwidth: float) -> None:
    costs = Costs(latency=time, reduce_bandwidth=bandwidth)
    assert Costs.from_text(costs.to_text()) == costs


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("latency 2us", "line 1: 'latency 2us' is not name = value"),
        ("\nspeed = 3", "line 2: there is no cost 'speed'; there are latency"),
        ("latency = 2", "line 1: latency: '2' is not a time"),
        ("bandwidth = 0GB", "line 1: bandwidth: '0GB' is not a bandwidth"),
    ],
)
def test_text_that_is_no_costs(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Costs.from_text(text)


def test_numbers_that_are_no_costs() -> None:
    for bad in ({"latency": -1.0}, {"bandwidth": 0.0}, {"slice": math.inf}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} cannot be"):
            Costs(**bad)
    assert (seconds("5 ms"), rate("8GB/s"), rate("1 Gbit/s")) == (5e-3, 8e9, 1.25e8)


def test_the_documented_costs_are_the_defaults() -> None:
    document = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text()
    reported = re.findall(r"^\| `(\w+)` \| (\S+) \|", document.partition("## Costs")[2], re.MULTILINE)
    assert [name for name, _ in reported] == list(NAMES)
    assert Costs.from_text("".join(f"{name} = {value}\n" for name, value in reported)) == Costs()


# --- training


def test_a_step_that_hides_its_communication() -> None:
    parts = training.buckets(training.parse("4M, 4M, 4M"), 0.09, 0)
    assert [part.ready for part in parts] == pytest.approx([0.05, 0.07, 0.09])
    found = training.step(parts, 0.09, 4, lambda nbytes: 0.015)
    assert found.overlapped == pytest.approx(0.105) and found.alone == pytest.approx(0.135)
    assert training.speedup(found, 0.09) == pytest.approx((4 * 0.09 / 0.105, 4 * 0.09 / 0.135))


def test_a_step_on_one_rank_communicates_nothing() -> None:
    found = training.step(training.buckets(training.parse("4M"), 0.1, 0), 0.1, 1, lambda nbytes: 1.0)
    assert (found.overlapped, found.alone, found.communication) == (0.1, 0.1, 0.0)


def test_gradients_in_buckets_go_when_the_last_is_ready() -> None:
    given_ = training.parse("1M 10ms\n2M 20ms # the first layers\n4M 30ms")
    found = training.buckets(given_, 0.03, 3 << 20)
    assert [(part.nbytes, part.ready) for part in found] == [(3 << 20, 0.02), (4 << 20, 0.03)]


@pytest.mark.parametrize("text", ["", "# nothing", "4M 3ms 2", "four"])
def test_what_is_no_gradient(text: str) -> None:
    with pytest.raises(ValueError):
        training.parse(text)
