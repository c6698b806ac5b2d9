"""Detects modes of a machine (see below) by two times: of a small message between ranks 0 and 1, and of a short loop.

Invariant: a ping (the time of the message) is cheap enough to be measured before and after every round of the
benchmark. The other ranks wait meanwhile. Every time includes Python's overhead, so pings are compared only with one
another: the hardware's latency is lower.

A hypervisor moves a virtual machine between cores. Two processes that shared a cache may then share none, and
everything that they exchange through memory takes two or three times as long. If a virtual core is a hardware thread,
it runs at little more than half speed while the core's second thread is busy. Such states are called modes of the
machine; times measured in different modes cannot be compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from collectives import Communicator
from collectives.bench.loop import sample
from collectives.bench.shared import shared

FACTOR: Final = 1.5  # by which pings of one mode may differ
CORE_FACTOR: Final = 1.25  # by which times of the same work may differ in one mode
FEWEST: Final = 3  # rounds that have to be left for a comparison
NEAR: Final = 200e-9  # seconds: a flag that a loop in Python sees sooner comes through a common cache
FLAGS: Final = 400  # round trips of a ping
MESSAGES: Final = 60
_LOOPS: Final = 25
_TURNS: Final = range(1500)  # turns of a loop that takes some 20 microseconds
_PATIENCE: Final = 10.0  # seconds without an answer
_SPINS: Final = 300  # reads of a flag, some ten microseconds, before the core is offered to others
_LINES: Final = (0, 16)  # the words that ranks 0 and 1 write: neither on one cache line nor on neighbouring lines


@dataclass(frozen=True, slots=True)
class Reading:
    """Three times, in seconds, that show how fast the machine is at the moment.

    `flag` is the latency of 8 bytes in shared memory from rank 0 to rank 1; None if these ranks have no shared memory.
    `link` is the latency of a message of 8 bytes, with `send` and `recv`. Both ranks run a short loop at the same time;
    `core` is the time of this loop on the slower rank.
    """

    flag: float | None
    link: float | None
    core: float | None = None

    @property
    def ping(self) -> float | None:
        """The latency in seconds of shared memory (`flag`) or, if there is no shared memory, of a link (`link`)."""
        return self.flag if self.flag is not None else self.link


class Ping:
    """Measures how fast the machine is, by the latency between ranks 0 and 1 and by a short loop on both.

    All ranks of the communicator must call every method.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm: Final = comm
        memory = shared(comm, 4096) if comm.size > 1 else None
        self._flags: Final = None if memory is None else memoryview(memory).cast("Q")
        self._message: Final = np.zeros(1, np.int64)
        self._count = 0

    @property
    def has_flags(self) -> bool:
        """Whether all ranks map the same memory, so that its latency can be measured. All ranks get the same answer."""
        return self._flags is not None

    def read(self) -> Reading:
        """Measure once how fast the machine is: two latencies between ranks 0 and 1, and the time of a short loop.

        The result is valid on rank 0 only. Raises: CollectiveError, TimeoutError.
        """
        comm = self._comm
        if comm.size == 1:
            return Reading(None, None)
        comm.barrier()
        core = self._work()
        hops = self._hops(FLAGS)
        links = [self._message_trip() for _ in range(MESSAGES)] if comm.rank < 2 else []
        comm.barrier()
        return Reading(median(hops) if hops else None, median(links) if links else None, core)

    def flags(self, trips: int) -> list[float]:
        """Measure the latency of 8 bytes in shared memory `trips` times, by round trips between ranks 0 and 1.

        Rank 0 returns a list of latencies in seconds, each half of a round trip. The list is empty on other ranks, and
        if the ranks have no shared memory.
        """
        self._comm.barrier()
        found = self._hops(trips)
        return found if self._comm.rank == 0 else []

    def _hops(self, trips: int) -> list[float]:
        flags, rank = self._flags, self._comm.rank
        if flags is None or rank > 1:
            return []
        mine, theirs = _LINES[rank], _LINES[1 - rank]
        clock = time.perf_counter_ns
        first, count = rank == 0, self._count
        times: list[float] = []
        for _ in range(trips):
            count += 1
            start = clock()
            if first:
                flags[mine] = count
            spins = 0
            while flags[theirs] != count:
                spins += 1
                if spins == _SPINS:
                    spins = 0
                    os.sched_yield()
                    if clock() - start > _PATIENCE * 1e9:
                        raise TimeoutError(f"rank {1 - rank} has not answered a ping for {_PATIENCE:g} s")
            if not first:
                flags[mine] = count
            times.append((clock() - start) / 2e9)
        self._count = count
        return times

    def _work(self) -> float | None:
        comm = self._comm
        if comm.rank > 1:
            return None
        mine, other = np.median(sample(_loop, lambda: None, _LOOPS), keepdims=True), np.zeros(1)
        if comm.rank == 1:
            comm.send(mine, 0)
        else:
            comm.recv(other, 1)
        return float(max(mine[0], other[0]))

    def _message_trip(self) -> float:
        comm, x = self._comm, self._message
        start = time.perf_counter_ns()
        if comm.rank == 0:
            comm.send(x, 1)
            comm.recv(x, 1)
        else:
            comm.recv(x, 0)
            comm.send(x, 0)
        return (time.perf_counter_ns() - start) / 2e9


def _loop() -> None:
    for _turn in _TURNS:
        pass


def alike(pings: Sequence[tuple[Reading, Reading]]) -> list[int]:
    """Return the indices of the rounds of measurement in which the machine was equally fast.

    `pings` has two readings of the machine's speed for each round, taken before and after it. A reading has the latency
    between two ranks, and the time of a short loop. In the returned rounds, the latency differs from the median by at
    most the factor `FACTOR`. The time of the loop differs from its median by at most the factor `CORE_FACTOR`.

    If a reading lacks a time, that time excludes no round. If fewer than `FEWEST` rounds remain, all rounds are
    returned.
    """
    rounds = range(len(pings))
    near = _steady([[r.ping for r in pair] for pair in pings], FACTOR)
    fast = _steady([[r.core for r in pair] for pair in pings], CORE_FACTOR)
    kept = [i for i in rounds if near[i] and fast[i]]
    return kept if len(kept) >= min(FEWEST, len(pings)) else list(rounds)


def _steady(figures: Sequence[Sequence[float | None]], factor: float) -> list[bool]:
    """For each round, whether its times are within `factor` of the median round's. All true if any time is missing."""
    known = [[f for f in pair if f is not None] for pair in figures]
    if not all(len(pair) == 2 for pair in known):
        return [True] * len(figures)
    typical = median((a * b) ** 0.5 for a, b in known)
    return [all(typical / factor <= f <= typical * factor for f in pair) for pair in known]


def mode(pings: Sequence[tuple[Reading, Reading]]) -> str:
    """Return "near" if ranks 0 and 1 run on cores that share a cache, "far" if not, and "" if it is unknown.

    The median latency of shared memory decides. `pings` has two readings of this latency for each round of measurement.
    """
    flags = [r.flag for pair in pings for r in pair if r.flag is not None]
    return "" if not flags else "near" if median(flags) < NEAR else "far"
