"""The time to form a group through a rendezvous store, and the time until a communicator is ready.

Invariant: the clock runs from the first rank's start to the last rank's end. All ranks are threads of one process; the
threads already run when the clock starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import collectives
from collectives.bench.rank_threads import Place, RankThreads, job
from collectives.rendezvous import Membership, Store, form, open_store, release


@dataclass(frozen=True, slots=True)
class Meeting:
    """How long the ranks took to find each other through a rendezvous store, in seconds, in each round of measurement.

    `meet` ends when every rank has read what all other ranks have published in the store. `init` ends when
    `collectives.init` has returned on all ranks.
    """

    store: str
    ranks: int
    meet: tuple[float, ...]
    init: tuple[float, ...]


def measure(place: Place, ranks: int, rounds: int, timeout: float) -> Meeting:
    """Measure how long `ranks` threads take to find each other through the rendezvous store `place`.

    In each of `rounds` rounds, two durations are measured: until all ranks know each other, and until
    `collectives.init` has returned. `timeout` is in seconds. Raises: CollectiveError.
    """
    with RankThreads(ranks) as threads:
        meet = [_meet(threads, place, timeout) for _ in range(rounds)]
        init = [_init(threads, place, timeout) for _ in range(rounds)]
    return Meeting(place.kind, ranks, tuple(meet), tuple(init))


def _meet(threads: RankThreads, place: Place, timeout: float) -> float:
    with job() as secret:
        run = secret.hex()[:32]
        opened: list[tuple[Store, Membership | None]] = []

        def meet(rank: int) -> None:
            store = open_store(place.url, timeout=timeout, host=rank == 0, secret=secret)
            opened.append((store, None))
            found = form(
                store,
                rank=rank,
                size=threads.ranks,
                name="meeting",
                record={"rank": rank},
                fingerprint="bench",
                run_id=run,
                secret=secret,
                timeout=timeout,
            )
            opened.append((store, found))

        try:
            return threads.run(meet)[1]
        finally:
            for store, membership in opened:
                if membership is not None:
                    release(store, membership)
            for store, _ in opened:
                store.close()


def _init(threads: RankThreads, place: Place, timeout: float) -> float:
    with job() as secret:
        made: list[collectives.Communicator] = []

        def init(rank: int) -> None:
            made.append(
                collectives.init(
                    place.url,
                    rank=rank,
                    size=threads.ranks,
                    name="meeting",
                    timeout=timeout,
                    join_timeout=timeout,
                    secret=secret,
                    calibrate="off",
                )
            )

        try:
            return threads.run(init)[1]
        finally:
            for comm in made:
                comm.close()
