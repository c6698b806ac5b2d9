"""Every collective over every transport, store and size, for every dtype and op, against NumPy.

shm and tcp run between processes, which stay for the whole module and join one group after another; inproc, and
whatever meets through the memory store, between threads. A store has no part in a group once ranks have met: groups of
every size meet through one store, and go through all algorithms, shapes and ways to pass arrays; groups of two sizes
meet through each other store, and go through all dtypes and ops. The long form takes every size with every store.

The transport of another package, vm-write, is built and installed first, and runs with that one store.

With that store also in segments of a few odd sizes, so small that most messages are cut into many slices.
COLLECTIVES_SEGMENT=100 runs the whole suite like that.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives.rendezvous import secret
from collectives.transports.transport import left_out
from tests.collectives.conformance.case import Case
from tests.collectives.conformance.cases import COLLECTIVES, IN_PLACE, LARGEST, REDUCTIONS, ops_of
from tests.collectives.conformance.ranks import Job, Rank, ThreadRank, everyone, failures, processes, threads
from tests.collectives.conformance.reference import DTYPES
from tests.depth import LONG
from tests.redis_server import RedisServer

TRANSPORTS = ("shm", "tcp", "inproc")
PLUGIN = "vm-write"
SIZES = (1, 2, 3, 4, 5, 7, 8) if LONG else (1, 2, 3, 5, 8)
THOROUGH = "file"  # the store with which everything is gone through
OTHER_STORES = ("memory", "redis", "tcp")
SIZES_OF_OTHERS = SIZES if LONG else (2, 5)
SEGMENTS = {100: (2, 3, 4), 1000: (5, 7, 8)} if LONG else {100: (3,), 1000: (5,)}  # bytes; of groups of these sizes
GROUPS = [
    pytest.param((*group, None)[:4], id="-".join(map(str, group)))
    for group in (
        *itertools.product(TRANSPORTS, (THOROUGH,), SIZES),
        *itertools.product(TRANSPORTS, OTHER_STORES, SIZES_OF_OTHERS),
        ("shm", "redis-password", 3),
        ("tcp", "redis-tls", 2),
        *((t, THOROUGH, size, s) for t in TRANSPORTS for s, some in SEGMENTS.items() for size in some),
        *((PLUGIN, THOROUGH, size) for size in ((1, 2, 3, 8) if LONG else (1, 2, 5))),
        (PLUGIN, "memory", 3),
        (PLUGIN, THOROUGH, 4, 100),
        *([(PLUGIN, THOROUGH, 5, 1000)] if LONG else []),
    )
]
FIXED = ("same bits", "barrier", "function", "plan")  # whose shapes are their own
_jobs = itertools.count()


class Ranks:
    """Ranks to lend, as processes or as threads, and the stores where they meet."""

    def __init__(
        self,
        directory: Path,
        find_redis: Callable[[str], RedisServer],
        workers: Sequence[Rank],
        local: Sequence[ThreadRank],
    ) -> None:
        self._directory = directory
        self._find_redis = find_redis
        self._workers = workers
        self._local = local
        self._secret = directory / "secret"
        secret.write(self._secret, secret.mint())

    def lend(self, transport: str, store: str, size: int, segment: int | None) -> Sequence[Rank]:
        """Ranks that have joined one group; `segment` as in `init`."""
        if transport != PLUGIN and (reason := left_out(transport)):
            pytest.skip(reason)
        in_threads = transport == "inproc" or store == "memory"
        ranks = (self._local if in_threads else self._workers)[:size]
        name = f"job{next(_jobs)}"
        with reserved_port() as port:
            match store:
                case "memory":
                    url = f"memory://{name}"
                case "file":
                    url = (self._directory / "store").as_uri()
                case "tcp":
                    url = f"tcp://127.0.0.1:{port}"
                case _:
                    url = self._find_redis(store).url
            job = Job(url, transport, size, name, str(self._secret), segment)
            assert not failures(everyone(ranks, [job.command(rank) for rank in range(size)]))
        return ranks


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that stays ours, without listening, until a server of our own has taken it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[Ranks]:
    fixtures = {"redis": "redis_plain", "redis-password": "redis_password", "redis-tls": "redis_tls"}
    with processes([()] * max(SIZES), site) as workers, threads(max(SIZES)) as local:
        directory = tmp_path_factory.mktemp("conformance")
        yield Ranks(directory, lambda kind: request.getfixturevalue(fixtures[kind]), workers, local)


@pytest.fixture(scope="module", params=GROUPS)
def group(request: pytest.FixtureRequest, ranks: Ranks) -> Iterator[tuple[Sequence[Rank], dict[str, Any]]]:
    """Ranks that form a group, for all collectives one after another; and which cases they go through."""
    transport, store, size, segment = request.param
    lent = ranks.lend(transport, store, size, segment)
    yield lent, {"thorough": store == THOROUGH, "largest": LARGEST.get(segment)}
    assert not failures(everyone(lent, [{"do": "leave"}] * size))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collective(group: tuple[Sequence[Rank], dict[str, Any]], collective: str) -> None:
    lent, which = group
    command = {"do": "all", "collective": collective, **which}
    wrong = failures(everyone(lent, [command] * len(lent)))
    assert not wrong, wrong


@st.composite
def drawn_cases(draw: st.DrawFn) -> Case:
    collective = draw(
        st.sampled_from([c for c in COLLECTIVES if c not in ("same bits", "barrier", "function", "plan")])
    )
    dtype = draw(st.sampled_from(DTYPES))
    divides = collective in ("reduce_scatter", "alltoall") or collective.endswith("v")
    extents = st.one_of(st.integers(0, 9), st.integers(60, 70), st.integers(1000, 9000))
    shape = (draw(extents), *draw(st.lists(st.integers(0, 4), max_size=3)))
    if not divides and draw(st.booleans()):
        shape = shape[1:]
    takes_out = collective in (*REDUCTIONS, "allgather", "alltoall")
    places = ["new", "strided", *(["out"] if takes_out else [])]
    places += ["in"] if collective in IN_PLACE else []
    return Case(
        collective,
        dtype.name,
        draw(st.sampled_from(ops_of(collective, dtype))),
        shape,
        root=draw(st.integers(0, 7)),
        place=draw(st.sampled_from(places)),
        background=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


@pytest.mark.parametrize("segment", [None, *SEGMENTS])
@pytest.mark.parametrize(("transport", "size"), [("shm", 3), ("tcp", 4), ("inproc", 5), ("shm", 8), (PLUGIN, 4)])
def test_drawn_shapes(ranks: Ranks, transport: str, size: int, segment: int | None) -> None:
    """Cases nobody thought of, run by a group that stays; hypothesis shrinks what fails."""
    lent = ranks.lend(transport, THOROUGH, size, segment)

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(drawn_cases())
    def check(case: Case) -> None:
        wrong = failures(everyone(lent, [{"do": "case", "case": case.to_json()}] * size))
        assert not wrong, wrong

    try:
        check()
    finally:
        everyone(lent, [{"do": "leave"}] * size)
