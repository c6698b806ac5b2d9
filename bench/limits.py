"""The floors of this machine: lower limits of a collective's time, measured in the same run as the collective.

Invariant: floors are timed on all ranks at once, in turns with this library and other systems. Floors are programs
without the library, but `push` calls the library's function that adds arrays. Floors are a little above the true
limits, `flag` by Python's polling and `push` by NumPy's stores: see docs/benchmark.md. N is the collective's size in
bytes.

    flag     8 bytes through memory that two ranks map, one way
    copy     every rank copies N bytes from one ordinary array to another
    push     an allreduce in which no rank waits: each rank adds up its share of the elements of all inputs, in memory
             that all ranks map, and stores the sums into all outputs
    oneway   N bytes from rank 0 to rank 1, through a plain TCP socket over loopback
    duplex   every rank sends busbw / algbw x N bytes to the next rank, and receives as many from the previous rank,
             through plain TCP sockets over loopback
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

import numpy as np

from collectives import Communicator
from collectives.arrays.array import dtype_of
from collectives.bench.cases import Case
from collectives.bench.loop import Pace, Samples, elapsed, sample
from collectives.bench.measure import AGAIN, Contestant, Unsupported
from collectives.bench.ping import FLAGS, Ping
from collectives.bench.shared import array, shared
from collectives.bench.sockets import Ring
from collectives.bench.values import touched
from collectives.native import _engine

OF_MEMORY: Final = ("flag", "copy", "push")
OF_SOCKETS: Final = ("oneway", "duplex")
_BLOCK: Final = 128 << 10  # bytes that are reduced and then stored elsewhere while they are in the cache
_ALIGNED: Final = 4096
_WRITES: Final = (48 << 10, 1 << 40)  # bytes of one write at most: in pieces, or everything at once; the faster counts
_TRIALS: Final = 6

Begin = Callable[[Case], Callable[[], None]]  # raises Unsupported, then on every rank


def floors(comm: Communicator, names: Sequence[str], ping: Ping, stack: ExitStack) -> list[Contestant]:
    """Return objects that measure lower bounds for the time of a collective, such as the time of a plain copy.

    `names` selects the bounds; the module docstring lists them. `comm` is the communicator. `ping` measures the latency
    of shared memory. `stack` closes the resources at the end. The call is collective.
    """
    ring: Ring | None = None
    if set(names) & set(OF_SOCKETS) and 1 < comm.size == comm.local_size:
        ring = stack.enter_context(contextlib.closing(Ring(comm)))
    begin: dict[str, Begin] = {
        "copy": _copy,
        "push": lambda case: _push(comm, case),
        "oneway": lambda case: _sockets(comm, ring, case, both=False),
        "duplex": lambda case: _sockets(comm, ring, case, both=True),
    }
    return [Flag(ping) if name == "flag" else Floor(name, comm, begin[name]) for name in names]


class Floor:
    """A lower bound for the time of a collective, such as the time of a plain copy in memory.

    All ranks run the copy (or the like) at the same time. `begin(case)` allocates the memory for the size of the
    collective, and returns the function to time.
    """

    is_ours: Final = False

    def __init__(self, name: str, comm: Communicator, begin: Begin) -> None:
        self.name: Final = name
        self._comm: Final = comm
        self._begin: Final = begin
        self._call: Callable[[], None] | None = None

    def prepare(self, case: Case) -> None:
        if not case.nbytes:
            raise Unsupported("there is nothing to move")
        self._call = self._begin(case)
        sample(self._call, self._comm.barrier, AGAIN)

    def wrong(self, case: Case, salt: int) -> int:
        return 0

    def iterations(self, pace: Pace) -> int:
        assert self._call is not None
        call = self._call
        return pace.iterations(lambda iterations: _slowest(self._comm, call, iterations))

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        assert self._call is not None
        sample(self._call, self._comm.barrier, AGAIN)
        return tuple(self._comm.allgather(sample(self._call, self._comm.barrier, iterations)))

    def finish(self) -> None:
        self._call = None


class Flag:
    """A lower bound for the time of a collective: the latency of 8 bytes in shared memory, from rank 0 to rank 1.

    The bound does not depend on the size of the collective.
    """

    name: Final = "flag"
    is_ours: Final = False

    def __init__(self, ping: Ping) -> None:
        self._ping: Final = ping

    def prepare(self, case: Case) -> None:
        if not self._ping.has_flags:
            raise Unsupported("there are no two ranks that map the same memory")

    def wrong(self, case: Case, salt: int) -> int:
        return 0

    def iterations(self, pace: Pace) -> int:
        return min(FLAGS, pace.most)

    def turn(self, iterations: int) -> tuple[Samples, ...]:
        times = self._ping.flags(iterations)
        return (np.array(times),) if times else ()

    def finish(self) -> None:
        """Does nothing: there is no memory to release."""


def _slowest(comm: Communicator, call: Callable[[], None], iterations: int) -> float:
    return float(comm.allreduce(np.array(elapsed(call, comm.barrier, iterations)), "max"))


def _copy(case: Case) -> Callable[[], None]:
    source, target = (np.full(case.nbytes, 1, np.uint8) for _ in range(2))
    return lambda: np.copyto(target, source)


def _push(comm: Communicator, case: Case) -> Callable[[], None]:
    if case.collective != "allreduce":
        raise Unsupported("an allreduce is what pushes")
    each = -(-case.nbytes // _ALIGNED) * _ALIGNED
    memory = shared(comm, 2 * comm.size * each)
    if memory is None:
        raise Unsupported("not all ranks can map the same memory")
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    kind = dtype_of(case.dtype)
    arrays = [array(memory, kind, i * each, case.count) for i in range(2 * comm.size)]
    inputs, outputs = arrays[: comm.size], arrays[comm.size :]
    touched(inputs[comm.rank])
    touched(outputs[comm.rank])
    dtype, op = _engine.DTYPES[case.dtype], _engine.OPS[case.op]
    first, last = (case.count * r // comm.size for r in (comm.rank, comm.rank + 1))
    work, step = [], _BLOCK // kind.itemsize
    for start in range(first, last, step):
        part = slice(start, min(start + step, last))
        mine, *others = (outputs[(comm.rank + i) % comm.size][part] for i in range(comm.size))
        work.append((mine, [inp[part] for inp in inputs], others))

    def push() -> None:
        for mine, sources, others in work:
            _engine.reduce(mine, sources, dtype, op)
            for other in others:
                np.copyto(other, mine)

    return push


def _sockets(comm: Communicator, ring: Ring | None, case: Case, both: bool) -> Callable[[], None]:
    if ring is None:
        raise Unsupported("sockets need at least two ranks, all of them on one machine")
    nbytes = max(1, round(case.nbytes * case.kind.factor(comm.size))) if both else case.nbytes
    data, into = bytearray(b"\1") * nbytes, bytearray(b"\1") * nbytes  # zeros would share one page

    def move(piece: int) -> Callable[[], None]:
        if both:
            return lambda: ring.exchange(data, into, piece)
        if comm.rank == 0:
            return lambda: ring.exchange(data, b"", piece)
        return (lambda: ring.exchange(b"", into, piece)) if comm.rank == 1 else _nothing

    tried = [(_slowest(comm, move(piece), AGAIN), piece) for _ in range(_TRIALS) for piece in _WRITES]
    return move(min(tried)[1])


def _nothing() -> None: ...
