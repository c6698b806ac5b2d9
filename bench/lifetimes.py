"""Makes and closes communicators many times in one process, and counts the resources that remain.

Invariant: resources are counted in the kernel and in the store, before and after the rounds, which all run on the same
threads. Warm-up rounds come before the first count, because they load code and fill caches of Python and the allocator.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

import collectives
from collectives.bench.hosts import own_memory
from collectives.bench.rank_threads import Place, RankThreads, job

FIRST: Final = 100  # rounds that do not count
GROWTH: Final = 4 << 20  # bytes that resident memory may grow by, whatever the number of rounds
_ELEMENTS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Counts:
    """How many operating-system resources this process and the rendezvous store use at one moment.

    `segments` is the number of shared-memory mappings, `keys` the number of keys in the store. `files` is the number of
    files of the store and in /dev/shm. `memory` is the resident memory in bytes.
    """

    descriptors: int
    threads: int
    segments: int  # mappings of shared memory
    keys: int
    files: int  # in the store's directory, and the library's in /dev/shm
    memory: int

    @staticmethod
    def now(place: Place) -> Counts:
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        return Counts(
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=len(os.listdir("/proc/self/task")),
            segments=sum("/memfd:" in line or "/dev/shm/" in line for line in maps),
            keys=place.keys(),
            files=place.files() + sum(1 for _ in Path("/dev/shm").glob("*collectives*")),
            memory=own_memory("VmRSS"),
        )


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The result of creating and closing communicators many times: the resources in use before and after.

    `rounds` is how many times communicators were created and closed, and `seconds` the time of all rounds together.
    `wrong` is the number of wrong elements in the results of all allreduces.
    """

    store: str
    transport: str
    ranks: int
    rounds: int
    seconds: float
    before: Counts
    after: Counts
    wrong: int

    @property
    def grown(self) -> list[str]:
        """The names of the resources that leak, such as "descriptors" or "threads".

        More of these resources are in use after the measured rounds than before; memory may grow by `GROWTH` bytes.
        """
        before, after = asdict(self.before), asdict(self.after)
        return [name for name in before if after[name] > before[name] + (GROWTH if name == "memory" else 0)]


def measure(
    place: Place, transport: str, ranks: int, rounds: int, timeout: float, note: Callable[[int], None]
) -> Lifetimes:
    """Create and close communicators of `ranks` threads many times, and count the resources in use before and after.

    The ranks find each other through the rendezvous store `place`, and exchange data over `transport`. A warm-up comes
    before the `rounds` rounds that count. `timeout` is in seconds. `note` is called with the number of each round.
    Raises: CollectiveError.
    """
    wrong = 0
    with RankThreads(ranks) as threads, job() as secret:

        def life(rank: int) -> int:
            with collectives.init(
                place.url,
                rank=rank,
                size=ranks,
                name="lifetimes",
                transport=transport,
                timeout=timeout,
                join_timeout=timeout,
                secret=secret,
                calibrate="off",
            ) as comm:
                x = comm.empty(_ELEMENTS)
                x.fill(rank + 1)
                result = comm.allreduce(x)
                wrong = int(np.count_nonzero(result != ranks * (ranks + 1) / 2))
                y = np.ones(1 << 8)
                comm.allreduce(y, out=y)
                return wrong + int(np.count_nonzero(y != ranks))

        for _ in range(FIRST):
            threads.run(life)
        before, start = Counts.now(place), time.monotonic()
        for number in range(rounds):
            note(number)
            wrong += sum(threads.run(life)[0])
        seconds = time.monotonic() - start
        return Lifetimes(place.kind, transport, ranks, rounds, seconds, before, Counts.now(place), wrong)
