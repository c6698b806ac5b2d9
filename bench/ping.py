"""The time of a small message between ranks 0 and 1, and of a short loop on their cores, to detect modes of a machine.

Invariant: a ping is cheap enough to be measured before and after every round; ranks that take no part sleep or wait in
a barrier meanwhile. Every figure includes Python's time, so pings are compared with one another and are not lower
limits.

A virtual machine is moved between cores. Two processes may share a cache at first and share none later, when everything
that goes through memory takes two or three times as long. A core that is a hardware thread runs at little more than
half its speed while the other thread of its core is busy with another rank or another virtual machine. Such states are
called modes of the machine; figures from different modes cannot be compared.
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
    """Times between ranks 0 and 1 in one direction, in seconds.

    `flag`: for 8 bytes in memory that both ranks map, None without such memory. `link`: for a message of 8 bytes over
    the group's link. `core`: for a short loop that both ranks run at the same time, on the slower rank.
    """

    flag: float | None
    link: float | None
    core: float | None = None

    @property
    def ping(self) -> float | None:
        """The value by which modes are distinguished: `flag`, or `link` without common memory."""
        return self.flag if self.flag is not None else self.link


class Ping:
    """Measures between ranks 0 and 1 of a communicator. Every method is collective."""

    def __init__(self, comm: Communicator) -> None:
        self._comm: Final = comm
        memory = shared(comm, 4096) if comm.size > 1 else None
        self._flags: Final = None if memory is None else memoryview(memory).cast("Q")
        self._message: Final = np.zeros(1, np.int64)
        self._count = 0

    @property
    def has_flags(self) -> bool:
        """Whether there is memory that all ranks map; the result is the same on every rank."""
        return self._flags is not None

    def read(self) -> Reading:
        """Measure once; rank 0's result counts. Raises CollectiveError, TimeoutError."""
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
        """`trips` times of a flag in one direction, each half of a round trip.

        Empty if there is no common memory, and on all ranks but rank 0.
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
    """The rounds that can be compared with each other, by the readings before and after each round.

    Their pings are within a factor of `FACTOR` of the median round's, and their times of a loop within `CORE_FACTOR`.
    All rounds are returned if too few would be left or the readings are unknown.
    """
    rounds = range(len(pings))
    near = _steady([[r.ping for r in pair] for pair in pings], FACTOR)
    fast = _steady([[r.core for r in pair] for pair in pings], CORE_FACTOR)
    kept = [i for i in rounds if near[i] and fast[i]]
    return kept if len(kept) >= min(FEWEST, len(pings)) else list(rounds)


def _steady(figures: Sequence[Sequence[float | None]], factor: float) -> list[bool]:
    """For each round, whether its figures are within `factor` of the median round's; true for all if one is missing."""
    known = [[f for f in pair if f is not None] for pair in figures]
    if not all(len(pair) == 2 for pair in known):
        return [True] * len(figures)
    typical = median((a * b) ** 0.5 for a, b in known)
    return [all(typical / factor <= f <= typical * factor for f in pair) for pair in known]


def mode(pings: Sequence[tuple[Reading, Reading]]) -> str:
    """Whether the cores share a cache, by the times of flags: "near" or "far"; "" if there are no flags."""
    flags = [r.flag for pair in pings for r in pair if r.flag is not None]
    return "" if not flags else "near" if median(flags) < NEAR else "far"
