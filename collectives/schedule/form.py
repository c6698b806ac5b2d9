"""The classes of a schedule: the steps of one rank in a collective, on chunks whose memory is not known yet.

Invariant: a schedule holds no addresses, bytes, counts, dtypes or clocks. It is a value: two calls of an
algorithm with the same arguments give equal schedules, so it can be cached, compared, verified, simulated
and drawn, and the native executor binds real memory to it at run time.

Buffers are divided into blocks. `IN` and `OUT` have as many blocks as the schedule says (`grid`); how many
elements a block holds is decided at run time (equal shares for most collectives, given bounds for the
v-variants). A scratch slot (`SCRATCH + k`) is a list of blocks, each as large as the block of IN or OUT
that it names. A `Chunk` is a run of consecutive blocks of one buffer and may be empty.

Steps are listed in an order in which one rank could run them one after another. The executor starts each step as soon
as it can, within these rules:
- steps that use the same blocks keep their order if one of them writes (see `dependencies`). They may overlap in time:
  the later step may process bytes that the earlier step has finished;
- sends to one peer leave in listed order, and receives from one peer arrive in listed order;
- sends that name several peers keep their order among themselves;
- local steps keep their order among themselves.
No other order is kept.

In place: for collectives that accept the input array as `out`, IN and OUT may be the same memory. Their schedules have
to be right both with the same memory and with separate memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

IN: Final = 0
OUT: Final = 1
SCRATCH: Final = 2  # first scratch slot; slot k is buffer SCRATCH + k


class Chunk(NamedTuple):
    """`count` consecutive blocks of `buffer`, from block `first` on."""

    buffer: int
    first: int = 0
    count: int = 1  # type: ignore[assignment]  # hides the method of tuple, which nobody misses here

    @property
    def blocks(self) -> range:
        return range(self.first, self.first + self.count)


NOTHING: Final = Chunk(IN, 0, 0)  # the chunk of a message that carries no data

Operand: TypeAlias = "int | Chunk"  # a received message (the peer's rank) or local data


@dataclass(frozen=True, slots=True)
class Send:
    """Send `chunk`, as one message, to each of `peers` (distinct, never this rank)."""

    peers: tuple[int, ...]
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive the next message of `peer` into `chunk`."""

    peer: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Reduce:
    """dst = operands[0] op operands[1] op ..., left to right, rounded to dtype once. At least two operands.

    A rank as operand means the next message received from that rank; a chunk means local data. All operands have dst's
    size; a chunk is dst itself or disjoint from dst. `final` marks a result that contains every rank's contribution: if
    op is `avg`, this result is divided by the number of ranks.
    """

    dst: Chunk
    operands: tuple[Operand, ...]
    final: bool = False

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(o for o in self.operands if not isinstance(o, Chunk))

    @property
    def sources(self) -> tuple[Chunk, ...]:
        return tuple(o for o in self.operands if isinstance(o, Chunk))


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the chunk src to dst, a chunk of the same size; does nothing if both are the same memory."""

    dst: Chunk
    src: Chunk


Step: TypeAlias = "Send | Recv | Reduce | Copy"
Block: TypeAlias = "tuple[int, int]"  # (IN or OUT, block number): names the size of a scratch block


@dataclass(frozen=True, slots=True)
class Schedule:
    """One rank's part of a collective.

    `grid`: the number of blocks of IN, the input, and of OUT, the output. It is the same on every rank, even if a rank
    lacks a buffer (only the root of a gather has OUT, only the root of a scatter has IN). `pooled`: ranks that share
    memory may run this allreduce in the pool, one shared buffer to which all ranks add their arrays. `flat`: a pair of
    chunks (published, read), if the schedule is one round, else None. Then ranks that share memory may use no messages:
    each sender writes its chunk `published` to shared memory, and this rank reads the part `read` of each such chunk.
    """

    collective: str
    algorithm: str
    rank: int
    size: int
    root: int
    grid: tuple[int, int]
    scratch: tuple[tuple[Block, ...], ...]
    steps: tuple[Step, ...]
    pooled: bool = False
    flat: tuple[Chunk, Chunk] | None = None


class Builder:
    """Builds the schedule of one rank from steps that its methods add.

    `inp(first, count)`, `out(first, count)` and `scratch(...)` return chunks of the input, the output and scratch
    memory. Steps have to be added in an order in which they could run one after another.
    """

    def __init__(self, collective: str, algorithm: str, rank: int, size: int, grid: tuple[int, int], root: int = 0):
        self._head = (collective, algorithm, rank, size, root, grid)
        self._scratch: list[tuple[Block, ...]] = []
        self._steps: list[Step] = []
        self._pooled = False
        self._flat: tuple[Chunk, Chunk] | None = None

    @staticmethod
    def inp(first: int = 0, count: int = 1) -> Chunk:
        return Chunk(IN, first, count)

    @staticmethod
    def out(first: int = 0, count: int = 1) -> Chunk:
        return Chunk(OUT, first, count)

    def scratch(self, blocks: Iterable[Block]) -> Chunk:
        """Add a temporary buffer with blocks as large as `blocks`, which are blocks of IN or OUT; return all of it."""
        self._scratch.append(tuple(blocks))
        return Chunk(SCRATCH + len(self._scratch) - 1, 0, len(self._scratch[-1]))

    def like(self, chunk: Chunk) -> Chunk:
        """Add a temporary buffer with blocks as large as those of `chunk`, a chunk of IN or OUT.

        Returns the new buffer's blocks.
        """
        return self.scratch((chunk.buffer, b) for b in chunk.blocks)

    def pool(self) -> None:
        """Declare that ranks that share memory may compute this sum in the pool, one buffer to which all ranks add."""
        self._pooled = True

    def flat(self, published: Chunk, read: Chunk) -> None:
        """Declare that the schedule is one round: of each sender's chunk `published`, this rank needs the part `read`.

        `published` names the same blocks on every rank, so `read` is at the same position in each sender's chunk.
        """
        self._flat = (published, read)

    def send(self, peers: int | Iterable[int], chunk: Chunk) -> None:
        self._steps.append(Send((peers,) if isinstance(peers, int) else tuple(peers), chunk))

    def recv(self, peer: int, chunk: Chunk) -> None:
        self._steps.append(Recv(peer, chunk))

    def reduce(self, dst: Chunk, *operands: Operand, final: bool = False) -> None:
        """Add a step that reduces the operands into dst, left to right; an int is a peer whose next message is used.

        `final` marks a result that contains the operands of all ranks.
        """
        self._steps.append(Reduce(dst, operands, final))

    def copy(self, dst: Chunk, src: Chunk) -> None:
        if dst != src:
            self._steps.append(Copy(dst, src))

    def build(self) -> Schedule:
        collective, algorithm, rank, size, root, grid = self._head
        scratch, steps = tuple(self._scratch), tuple(self._steps)
        return Schedule(collective, algorithm, rank, size, root, grid, scratch, steps, self._pooled, self._flat)
