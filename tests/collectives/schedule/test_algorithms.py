"""The library's algorithms: each is right for every size, costs what it says and claims exactly what holds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from math import ceil, log2
from multiprocessing import get_context

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.algorithms import algorithm, algorithms, get, registry, schedule
from collectives.schedule import Algorithm, Builder, Schedule, VerificationError, verify
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.form import Send
from collectives.schedule.layout import Layout
from collectives.schedule.verification import Cost, sample_layouts
from tests.depth import LONG

EVERY = [a for name in COLLECTIVES for a in algorithms(name)]
# Up to which size every root and layout is verified, and the larger sizes: powers of two, and what lies beside them.
THOROUGH = 20 if LONG else 12
LARGER = tuple(range(21, 65)) if LONG else (16, 17, 20, 24, 31, 32, 33, 48, 63, 64)
# Where all ranks together send about p * p messages or blocks, larger groups take long to look at.
MANY_MESSAGES = {"ring", "hierarchical_ring", "two_shot", "scatter_allgather", "bruck", "pairwise"}
MANY_BLOCKS = {"circulant", "hierarchical_circulant", "halving_doubling", "halving_doubling_short"}


def large_sizes(a: Algorithm) -> tuple[int, ...]:
    if a.name in MANY_MESSAGES or (a.name == "direct" and not a.contract.rooted):
        return (100,)
    sizes = (129, 256) if a.name in MANY_BLOCKS else (129, 255, 512)
    return sizes if LONG else sizes[:1]


def one_layout(size: int) -> tuple[Layout]:
    """One of those that stand for all, another one for every size."""
    samples = sample_layouts(size)
    return (samples[size % len(samples)],)


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """Verifying makes millions of objects and no cycles; looking for them takes a fifth of the time."""
    gc.disable()
    yield
    gc.enable()


def test_all_that_were_promised_are_there() -> None:
    there = {name: {a.name for a in algorithms(name)} for name in COLLECTIVES}
    assert there["allreduce"] >= {"ring", "tree", "recursive_doubling", "halving_doubling", "circulant"}
    assert there["allreduce"] >= {"one_shot", "two_shot", "star"}
    assert there["reduce_scatter"] >= {"ring", "circulant", "direct"}
    assert there["allgather"] >= {"ring", "circulant", "direct"}
    assert there["broadcast"] >= {"binomial", "scatter_allgather", "direct"}
    assert there["reduce"] >= {"binomial", "binomial_in_order", "direct"}
    assert there["scan"] >= {"recursive_doubling", "chain", "direct", "hierarchical_doubling"}
    assert there["exscan"] == there["scan"]
    assert there["gather"] >= {"binomial", "linear"}
    assert there["scatter"] >= {"binomial", "linear"}
    assert there["alltoall"] >= {"bruck", "pairwise", "direct"}
    assert there["barrier"] >= {"dissemination"}


def up_to_64(a: Algorithm) -> int:
    few = verify(a, range(1, THOROUGH + 1)).lines
    more = verify(a, LARGER, roots=(0, 13), layouts=one_layout, orders=0).lines
    return len(few) + len(more)


def at_large_sizes(a: Algorithm) -> int:
    return len(verify(a, large_sizes(a), roots=(70,), layouts=one_layout, orders=0).lines)


def in_another_process(check: Callable[[Algorithm], int], collective: str, name: str) -> int:
    return check(get(collective, name))


Verified = Callable[[Callable[[Algorithm], int], Algorithm], int]


@pytest.fixture(scope="module")
def verified(request: pytest.FixtureRequest) -> Iterator[Verified]:
    """What a check gives for an algorithm. All that are going to be asked for are begun at once, on all cores."""
    checks: dict[str, Callable[[Algorithm], int]] = {
        "test_right_for_sizes_up_to_64": up_to_64,
        "test_right_for_large_sizes": at_large_sizes,
    }
    mine = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    wanted = [
        (checks[item.originalname], a)
        for item in mine
        if item.originalname in checks and isinstance(a := item.callspec.params["a"], Algorithm)
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=gc.disable) as pool:
        begun: dict[tuple[Callable[[Algorithm], int], str, str], Future[int]] = {
            (check, a.collective, a.name): pool.submit(in_another_process, check, a.collective, a.name)
            for check, a in wanted
        }
        yield lambda check, a: begun[check, a.collective, a.name].result()
        for future in begun.values():
            future.cancel()


@pytest.mark.parametrize("a", EVERY, ids=str)
def test_right_for_sizes_up_to_64(verified: Verified, a: Algorithm) -> None:
    assert verified(up_to_64, a) == THOROUGH + len(LARGER)


@pytest.mark.parametrize("a", EVERY, ids=str)
def test_right_for_large_sizes(verified: Verified, a: Algorithm) -> None:
    assert verified(at_large_sizes, a) == len(large_sizes(a))


def test_right_for_512_however_many_blocks() -> None:
    verify(get("reduce_scatter", "circulant"), [512], orders=0)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.sampled_from([a for a in EVERY if max(large_sizes(a)) > 100]), st.integers(65, 160), st.integers(0, 64))
def test_right_for_sizes_in_between(a: Algorithm, size: int, root: int) -> None:
    verify(a, [size], roots=(root,), layouts=one_layout, seed=size)


@pytest.mark.parametrize("a", EVERY, ids=str)
def test_equal_schedules_for_equal_arguments(a: Algorithm) -> None:
    for rank in range(6):
        assert a(rank, 6) == a(rank, 6)
        assert hash(a(rank, 6)) == hash(a(rank, 6))


@pytest.mark.parametrize("a", EVERY, ids=str)
def test_says_what_it_costs(a: Algorithm) -> None:
    words = " ".join((a.function.__doc__ or "").split())
    assert "a rank sends" in words or "root sends" in words or "rank 0 sends" in words
    assert "any size" in words
    assert "alpha" in words


@pytest.mark.parametrize("a", [a for a in EVERY if a.contract.may_alias and not a.in_place], ids=str)
def test_those_said_not_to_work_in_place_do_not(a: Algorithm) -> None:
    with pytest.raises(VerificationError, match="in place: deadlock"):
        verify(replace(a, in_place=True), [2, 3, 4])


@pytest.mark.parametrize("a", [a for a in EVERY if not a.uneven], ids=str)
def test_those_said_to_need_equal_blocks_do(a: Algorithm) -> None:
    with pytest.raises(VerificationError, match="differ in size"):
        verify(replace(a, uneven=True), range(2, 9))


@pytest.mark.parametrize(
    "a", [a for a in EVERY if a.contract.reduces and a.collective != "barrier" and not a.in_order], ids=str
)
def test_those_not_said_to_be_in_order_are_not(a: Algorithm) -> None:
    with pytest.raises(VerificationError, match="not reduced in the order of ranks"):
        verify(replace(a, in_order=True), range(2, 12), orders=0)


def test_every_reduction_has_one_in_order() -> None:
    for name, contract in COLLECTIVES.items():
        if contract.reduces and name != "barrier":
            assert any(a.in_order and a.uneven for a in algorithms(name)), name


def test_v_variants_have_algorithms() -> None:
    for name in ("allgather", "gather", "scatter", "alltoall", "reduce_scatter"):
        assert algorithms(name, uneven=True)
    assert get("alltoall", "bruck") not in algorithms("alltoall", uneven=True)


# --- costs, as the docstrings state them


def costs(collective: str, name: str, sizes: range = range(2, 20)) -> list[tuple[int, Cost]]:
    """Size and cost; a rank's bytes are cost.blocks of the schedule's blocks."""
    return [(line.size, line.cost) for line in verify(get(collective, name), sizes, roots=(0,), orders=0).lines]


def rounds(p: int) -> int:
    return ceil(log2(p))


def test_ring_costs() -> None:
    assert all((c.rounds, c.blocks) == (2 * (p - 1), 2 * (p - 1)) for p, c in costs("allreduce", "ring"))
    assert all(
        (c.rounds, c.blocks, c.scratch) == (p - 1, p - 1, min(2, p - 2)) for p, c in costs("reduce_scatter", "ring")
    )
    assert all((c.rounds, c.blocks) == (p - 1, p - 1) for p, c in costs("allgather", "ring"))


def test_circulant_costs() -> None:
    assert all(c.rounds <= 2 * rounds(p) and c.blocks == 2 * (p - 1) for p, c in costs("allreduce", "circulant"))
    assert all((c.rounds, c.blocks) == (rounds(p), p - 1) for p, c in costs("reduce_scatter", "circulant"))
    assert all(c.rounds <= rounds(p) and c.blocks == p - 1 for p, c in costs("allgather", "circulant"))


def test_halving_and_doubling_costs() -> None:
    for name, messages in (("halving_doubling", 2), ("halving_doubling_short", 1)):
        for p, c in costs("allreduce", name):
            below = 1 << p.bit_length() - 1
            halvings, folds = int(log2(below)), below < p
            assert c.rounds == 2 * halvings + 2 * folds
            assert c.blocks == 2 * (below - 1) + below * folds
            assert c.messages == 2 * (messages * (halvings - 1) + 1) + folds
    for p, c in costs("allreduce", "recursive_doubling"):
        below = 1 << p.bit_length() - 1
        assert c.rounds == int(log2(below)) + 2 * (below < p)
        assert c.blocks == int(log2(below)) + (below < p)
        assert c.scratch <= 2


def test_tree_costs() -> None:
    for p, c in costs("allreduce", "tree", range(2, 65)):
        assert c.rounds <= 2 * rounds(p) + 2
        assert c.blocks <= 4  # of 2: twice the data


def test_direct_costs() -> None:
    assert all((c.rounds, c.blocks) == (1, p - 1) for p, c in costs("allreduce", "one_shot"))
    assert all((c.rounds, c.blocks) == (2, 2 * (p - 1)) for p, c in costs("allreduce", "two_shot"))
    assert all((c.rounds, c.blocks) == (2, p - 1) for p, c in costs("allreduce", "star"))
    assert all((c.rounds, c.blocks) == (1, p - 1) for p, c in costs("reduce_scatter", "direct"))


def test_scan_costs() -> None:
    for p, c in costs("scan", "recursive_doubling"):
        assert (c.rounds, c.blocks) == (rounds(p), rounds(p)) and c.scratch <= 2
    for p, c in costs("exscan", "recursive_doubling", range(3, 20)):
        assert (c.rounds, c.blocks) == (1 + rounds(p - 1), 1 + rounds(p - 1)) and c.scratch <= 3
    for name in ("scan", "exscan"):
        assert all((c.rounds, c.blocks) == (p - 1, 1) for p, c in costs(name, "chain"))
        assert all((c.rounds, c.blocks) == (1, p - 1) for p, c in costs(name, "direct"))
    for p, c in costs("reduce", "binomial_in_order"):
        assert c.rounds <= rounds(p) and c.blocks == 1
    assert all((c.rounds, c.blocks, c.scratch) == (1, p - 1, p - 1) for p, c in costs("reduce_scatter", "pairwise"))


def test_hierarchical_scans_cross_hosts_seldom() -> None:
    """Of four hosts with three ranks each, numbered host by host, only one rank a host sends elsewhere."""
    layout = Layout.of(rank // 3 for rank in range(12))
    for name in ("scan", "exscan"):
        for rank in range(12):
            steps = get(name, "hierarchical_doubling")(rank, 12, layout=layout).steps
            leaving = [p for s in steps if isinstance(s, Send) for p in s.peers if p // 3 != rank // 3]
            assert len(leaving) <= (3 if rank % 3 == 2 else 0)


def test_logarithmic_costs() -> None:
    for collective, name in (
        ("broadcast", "binomial"),
        ("reduce", "binomial"),
        ("gather", "binomial"),
        ("scatter", "binomial"),
        ("alltoall", "bruck"),
        ("barrier", "dissemination"),
    ):
        for p, c in costs(collective, name):
            assert c.rounds == rounds(p) if p & p - 1 == 0 else c.rounds <= rounds(p), collective
    assert all(c.messages == rounds(p) for p, c in costs("alltoall", "bruck"))
    assert all(c.blocks == p - 1 for p, c in costs("scatter", "binomial"))


def test_scatter_allgather_sends_nobody_what_it_has() -> None:
    for p, c in costs("broadcast", "scatter_allgather"):
        assert c.rounds <= rounds(p) + p - 1
        assert c.blocks <= 2 * (p - 1)
    root = schedule("broadcast", "scatter_allgather", 0, 8)
    assert not any("recv" in type(step).__name__.lower() for step in root.steps)


# --- the registry


@pytest.fixture
def empty_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_registry", {name: dict(known) for name, known in registry._registry.items()})


def two_ranks(rank: int, size: int) -> Schedule:
    b = Builder("allreduce", "two_ranks", rank, size, grid=(1, 1))
    theirs = b.like(b.inp())
    b.send(1 - rank, b.inp())
    b.recv(1 - rank, theirs)
    b.reduce(b.out(), *([b.inp(), theirs] if rank == 0 else [theirs, b.inp()]), final=True)
    return b.build()


@pytest.mark.usefixtures("empty_name")
def test_users_register_their_own() -> None:
    mine = algorithm("allreduce", sizes=lambda size: size == 2, in_place=True)(two_ranks)
    assert get("allreduce", "two-ranks") is get("allreduce", "two_ranks") is mine
    assert mine in algorithms("allreduce", 2)
    assert mine not in algorithms("allreduce", 3)
    assert [line.size for line in verify(mine, range(1, 9)).lines] == [2]
    assert schedule("allreduce", "two-ranks", 1, 2) == mine(1, 2)
    with pytest.raises(ValueError, match="two_ranks does not work for 3 ranks"):
        mine(0, 3)


@pytest.mark.usefixtures("empty_name")
def test_a_name_means_one_algorithm() -> None:
    algorithm("allreduce")(two_ranks)
    with pytest.raises(ValueError, match="already an algorithm allreduce two_ranks"):
        algorithm("allreduce")(two_ranks)
    algorithm("allreduce", name="other")(two_ranks)
    algorithm("reduce")(two_ranks)


@pytest.mark.parametrize("name", ["Ring", "my-ring", "1st", "a b", "_x"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not lower case"):
        algorithm("allreduce", name=name)(two_ranks)


def test_claims_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="never works in place; allreduce, reduce, scan, exscan do"):
        algorithm("allgather", in_place=True)(two_ranks)
    with pytest.raises(ValueError, match="allgather reduces nothing, in any order"):
        algorithm("allgather", in_order=True)(two_ranks)
    with pytest.raises(ValueError, match="there is no collective 'allsum'; there are allgather, "):
        algorithm("allsum")(two_ranks)


def test_what_is_unknown_lists_what_is_known() -> None:
    with pytest.raises(
        ValueError, match=r"no algorithm 'rong' for reduce_scatter .did you mean 'ring'.*; there are: .*ring"
    ):
        get("reduce_scatter", "rong")
    with pytest.raises(ValueError, match="no collective 'allsum'"):
        get("allsum", "ring")


def test_schedules_are_remembered() -> None:
    assert schedule("allreduce", "ring", 2, 4) is schedule("allreduce", "ring", 2, 4)


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 4 is not within 0 to 3"):
        schedule("allreduce", "ring", 4, 4)
    with pytest.raises(ValueError, match="does not work for 0 ranks"):
        schedule("allreduce", "ring", 0, 0)
    with pytest.raises(ValueError, match="root 5 is not within 0 to 3"):
        schedule("broadcast", "binomial", 0, 4, 5)
    with pytest.raises(ValueError, match="allreduce has no root"):
        schedule("allreduce", "ring", 0, 4, 1)
