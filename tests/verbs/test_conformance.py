"""Every collective over RDMA verbs between two devices, for 2 and 4 ranks, against NumPy: the cases of
tests/collectives/conformance, and long messages, which go around the rings many times.

Ranks are processes that stay for the whole module; every second one uses the second device. Meanwhile perftest, a
program that is not ours, writes over the same devices again and again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from collectives import algorithms
from collectives.rendezvous import secret
from tests.collectives.conformance.case import Case
from tests.collectives.conformance.cases import COLLECTIVES, IN_PLACE
from tests.collectives.conformance.ranks import Job, ProcessRank, everyone, failures, processes
from tests.depth import LONG
from tests.verbs import perftest

SIZES = (2, 4)
COUNTS = (0, 1, 7, 1_000, 65_537)
DTYPES = ("float32", "int64", "bfloat16") if LONG else ("float32",)
WITH_ALGORITHMS = ("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "scatter", "alltoall")
OF_PARTS = ("reduce_scatter", "allgather", "gather", "scatter", "alltoall")  # a shape is that of one rank's part
OF_UNEVEN_PARTS = tuple(f"{collective}v" for collective in OF_PARTS)  # a shape is the largest that a part may have
IN_THE_LONG_FORM = ("scan", "exscan", *OF_UNEVEN_PARTS) if LONG else ()  # with one dtype for each count, in turn
OF_LONG_MESSAGES = (*WITH_ALGORITHMS, *(IN_THE_LONG_FORM or ("scan",)))
MIB = 1 << 20

WITHIN = 280.0  # seconds for an answer: the processor of the VM is emulated

pytestmark = pytest.mark.timeout(300)
_jobs = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def another_program() -> Iterator[None]:
    """perftest, which shares the devices with the ranks of all tests. Its writes have to arrive, too."""
    with perftest.again_and_again() as runs:
        yield
    assert runs.complete >= 3, f"perftest has written {runs.complete} times"


@pytest.fixture(scope="module")
def workers() -> Iterator[list[ProcessRank]]:
    with processes([()] * max(SIZES)) as ranks:
        assert not failures(everyone(ranks, [{"do": "leave"}] * len(ranks), WITHIN))  # all of them have started
        yield ranks


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size}-ranks")
def group(
    request: pytest.FixtureRequest, workers: Sequence[ProcessRank], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[ProcessRank]]:
    """Ranks that are linked by verbs, for all tests one after another."""
    size: int = request.param
    folder = tmp_path_factory.mktemp("verbs")
    key = folder / "secret"
    secret.write(key, secret.mint())
    lent = workers[:size]
    job = Job((folder / "store").as_uri(), "verbs", size, f"job{next(_jobs)}", str(key))
    assert not failures(everyone(lent, [job.command(rank) for rank in range(size)], WITHIN))
    yield lent
    assert not failures(everyone(lent, [{"do": "leave"}] * size, WITHIN))


def check(group: Sequence[ProcessRank], cases: Sequence[Case]) -> None:
    for case in cases:
        wrong = failures(everyone(group, [{"do": "case", "case": case.to_json()}] * len(group), WITHIN))
        if wrong:
            pytest.fail(f"{case}: {wrong}", pytrace=False)


def algorithms_of(collective: str, size: int) -> list[str]:
    uneven = collective in OF_UNEVEN_PARTS
    return [one.name for one in algorithms.algorithms(collective.removesuffix("v"), size, uneven=uneven)]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collective(group: Sequence[ProcessRank], collective: str) -> None:
    command = {"do": "all", "collective": collective, "thorough": LONG, "largest": None}
    wrong = failures(everyone(group, [command] * len(group), WITHIN))
    if wrong:
        pytest.fail(wrong, pytrace=False)


@pytest.mark.parametrize("collective", [*WITH_ALGORITHMS, *IN_THE_LONG_FORM])
def test_algorithms(group: Sequence[ProcessRank], collective: str) -> None:
    def dtypes(turn: int) -> Sequence[str]:
        return (DTYPES[turn % len(DTYPES)],) if collective in IN_THE_LONG_FORM else DTYPES

    check(
        group,
        [
            Case(collective, dtype, shape=(count,), algorithm=name, root=number)
            for number, name in enumerate(algorithms_of(collective, len(group)))
            for place, count in enumerate(COUNTS)
            for dtype in dtypes(number + place)
        ],
    )


@pytest.mark.parametrize("collective", OF_LONG_MESSAGES)
def test_long_messages(group: Sequence[ProcessRank], collective: str) -> None:
    names = algorithms_of(collective, len(group))
    uneven = collective in OF_UNEVEN_PARTS
    parts = len(group) if collective in OF_PARTS or uneven else 1
    shape = (9 * MIB // 4 // parts * (2 if uneven else 1),)  # half as long on average
    # In place, a part of a message may arrive only after what was there is on its way: the sender gets partial grants.
    in_place = collective in IN_PLACE
    # exscan sends as scan does, so one place is enough for it.
    both = LONG and collective != "exscan"
    places = ["new", "in"] if both and in_place else ["in"] if in_place else ["new"]
    some = names if LONG and not uneven else names[:1]
    check(group, [Case(collective, shape=shape, algorithm=name, place=place) for name in some for place in places])


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling"] if LONG else ["ring"])
def test_longer_messages(group: Sequence[ProcessRank], algorithm: str) -> None:
    check(group, [Case("allreduce", shape=(20 * MIB // 4,), algorithm=algorithm)])
