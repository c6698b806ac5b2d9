"""The time to form a group through a rendezvous store, and the time until a communicator is ready.

Invariant: the clock runs from the first rank's start to the last rank's end. The threads and processes of all ranks
already run when the clock starts. Systems take turns: each round has one turn of each.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Final

from collectives.bench import meeting_turns
from collectives.bench.meeting_turns import Job, Span
from collectives.bench.rank_processes import RankProcesses
from collectives.bench.rank_threads import Place, place

SECONDS: Final = 5.0  # the target for 1024 ranks or fewer to meet through tcp and Redis
LARGEST: Final = 1024  # ranks
MEMORY: Final = 1 << 20  # bytes: the target for the memory of a rank that has met the others
OVER_TORCH: Final = 0.5  # the target for the times of `meet` and `init`, divided by that of torch's TCPStore and Gloo


@dataclass(frozen=True, slots=True)
class Meeting:
    """How long the ranks took to find each other through a rendezvous store, in seconds, in each round of measurement.

    `meet` ends when every rank has read and checked what all other ranks have published in the store. `init` ends when
    `collectives.init` has returned on all ranks. `torch` ends when torch.distributed has connected all ranks by its
    TCPStore and Gloo. Turns that were not measured have no times.

    `memory` is how many bytes resident memory grew for a rank until all ranks had met: in the first round, the average
    over the ranks of a process, and of these the median over the processes. `most_memory` is the largest of these
    averages, usually of the process that serves the store. `requests` is the median number of requests of a rank to the
    store in a round, and `most_requests` the largest, that of the leader. `received` is the median number of bytes that
    a rank has read from the store. `load` is the machine's load average (1 minute) before each round.
    """

    store: str
    ranks: int
    meet: tuple[float, ...]
    init: tuple[float, ...]
    processes: int = 1
    torch: tuple[float, ...] = ()
    memory: int = 0
    most_memory: int = 0
    requests: float = 0.0
    most_requests: int = 0
    received: float = 0.0
    load: tuple[float, ...] = ()

    @property
    def over_torch(self) -> float | None:
        """The median of `init`, divided by that of torch; None if one was not measured."""
        return median(self.init) / median(self.torch) if self.init and self.torch else None

    def bars(self) -> list[tuple[str, float, float]]:
        """The targets that this measurement can be compared with: what, the measured value, and the largest allowed."""
        found: list[tuple[str, float, float]] = []
        if self.store in ("tcp", "redis") and self.ranks <= LARGEST:
            found.append(("meet, seconds", median(self.meet), SECONDS))
        found.append(("memory of a rank, bytes", self.memory, MEMORY))
        if self.over_torch is not None:
            found.append(("meet over torch's TCPStore and Gloo", median(self.meet) / median(self.torch), OVER_TORCH))
            found.append(("init over torch's TCPStore and Gloo", self.over_torch, OVER_TORCH))
        return found


def measure(
    where: Place,
    ranks: int,
    rounds: int,
    timeout: float,
    processes: int = 1,
    *,
    with_init: bool = True,
    with_torch: bool = False,
) -> Meeting:
    """Measure how long `ranks` ranks, in `processes` processes, take to find each other through the store `where`.

    In each of `rounds` rounds, up to three durations are measured: until all ranks know each other; with `with_init`,
    until `collectives.init` has returned; with `with_torch`, until torch.distributed has made a process group of Gloo.
    For torch, each rank has to be a process. `timeout` is in seconds. Raises: CollectiveError; ValueError for a store
    that only one process can use.
    """
    if processes > 1 and where.kind == "memory":
        raise ValueError("the store memory is for one process")
    load: list[float] = []
    met: list[list[Span]] = []
    made: list[float] = []
    torch: list[float] = []
    with RankProcesses(ranks, processes, ["torch.distributed"] if with_torch else []) as group:
        group.run(meeting_turns.warm)
        for _ in range(rounds):
            load.append(os.getloadavg()[0])
            met.append(group.run(meeting_turns.meet, _job(where, ranks, timeout)))
            if with_init:
                made.append(_seconds(group.run(meeting_turns.init, _job(where, ranks, timeout))))
            if with_torch:
                with place("tcp") as free:
                    torch.append(_seconds(group.run(meeting_turns.torch_gloo, _job(free, ranks, timeout))))
    requests = [count for spans in met for span in spans for count in span.requests]
    received = [count for spans in met for span in spans for count in span.received]
    memory = [span.memory // len(span.requests) for span in met[0]]
    return Meeting(
        where.kind,
        ranks,
        tuple(map(_seconds, met)),
        tuple(made),
        processes,
        tuple(torch),
        int(median(memory)),
        max(memory),
        median(requests),
        max(requests),
        median(received),
        tuple(load),
    )


def has_torch() -> bool:
    """Return whether torch is installed."""
    return find_spec("torch") is not None


def _job(where: Place, ranks: int, timeout: float) -> Job:
    return Job(where.url, ranks, secrets.token_bytes(32), secrets.token_hex(16), timeout)


def _seconds(spans: list[Span]) -> float:
    return max(span.end for span in spans) - min(span.start for span in spans)
