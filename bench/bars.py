"""The targets (bars): the largest accepted ratio of our time to another system's, by ranks, collective and size.

Invariant: this module has only the targets; other modules measure times and compare them with the targets. A prototype
of the library reached the targets on a machine with two cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ROW: Final = 100  # calls in a row
MPI: Final = ("openmpi", "mpich", "impi")


@dataclass(frozen=True, slots=True)
class Band:
    """A range of message sizes in bytes, from `first` to `last`, both included.

    `sizes` are the sizes in this range that the benchmark measures.
    """

    first: int
    last: int
    sizes: tuple[int, ...]


_K: Final = 1 << 10
_M: Final = 1 << 20
BANDS: Final = (
    Band(8, 4 * _K, (8, 512, 4 * _K)),
    Band(16 * _K, _M, (16 * _K, 64 * _K, 256 * _K, _M)),
    Band(4 * _M, 64 * _M, (4 * _M, 16 * _M, 64 * _M)),
)


@dataclass(frozen=True, slots=True)
class Line:
    """The targets for the time of one collective, relative to other libraries such as Open MPI.

    A target is the largest accepted ratio of this library's time to the time of the fastest library in `against`.
    `bars` has one target for each range of message sizes in `BANDS`. On machines whose cores share a cache, `near`
    replaces `bars`, unless `near` is None.

    `buffers` is "plain" for NumPy arrays, "shared" for arrays in shared memory (`comm.empty`). `row` is how many calls
    are made without a barrier between them.
    """

    transport: str
    buffers: str
    ranks: int
    collective: str
    against: tuple[str, ...]
    bars: tuple[float, ...]
    near: tuple[float, ...] | None = None
    row: int = 1

    @property
    def setting(self) -> Setting:
        return Setting(self.transport, self.buffers, self.ranks, self.row)

    @property
    def bands(self) -> tuple[Band, ...]:
        return BANDS[: len(self.bars)]


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of one run of the benchmark: transport, kind of arrays, number of ranks.

    `buffers` is "plain" for NumPy arrays, "shared" for arrays in shared memory (`comm.empty`). `row` is how many calls
    are made without a barrier between them.
    """

    transport: str
    buffers: str
    ranks: int
    row: int = 1

    def __str__(self) -> str:
        row = f", {self.row} calls in a row" if self.row > 1 else ""
        return f"{self.transport}, {self.buffers} buffers, {self.ranks} ranks{row}"


LINES: Final = (
    Line("shm", "plain", 2, "allreduce", MPI, (0.6, 1.0, 0.7), near=(0.6, 0.85, 0.7)),
    Line("shm", "shared", 2, "allreduce", MPI, (0.6, 0.6, 0.4)),
    Line("shm", "plain", 4, "allreduce", MPI, (0.65, 0.8, 0.75)),
    Line("shm", "plain", 8, "allreduce", MPI, (0.5, 0.65, 0.6)),
    Line("tcp", "plain", 2, "allreduce", ("openmpi-tcp",), (0.8, 1.0, 0.95)),
    Line("tcp", "plain", 4, "allreduce", ("openmpi-tcp",), (0.8, 0.8, 0.8)),
    Line("tcp", "plain", 2, "allreduce", ("gloo",), (0.1, 0.6, 0.7)),
    Line("tcp", "plain", 4, "allreduce", ("gloo",), (0.1, 0.6, 0.7)),
    *(
        Line("shm", "plain", ranks, collective, MPI, (1.0, 1.0, 1.0))
        for collective in ("reduce_scatter", "allgather", "broadcast", "alltoall")
        for ranks in (2, 4)
    ),
    # Short messages without barriers in between, as the prototype was probably measured: see docs/benchmark.md.
    *(Line("shm", "plain", ranks, "allreduce", MPI, (bar,), row=ROW) for ranks, bar in ((2, 0.6), (4, 0.65), (8, 0.5))),
)
