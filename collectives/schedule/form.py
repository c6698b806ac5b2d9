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
    """Consecutive blocks of a buffer: `count` blocks, beginning with block `first`.

    `buffer` is 0 (IN, the input), 1 (OUT, the output) or larger (temporary memory).
    """

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
    """A step of a schedule: send `chunk` (consecutive blocks of a buffer), as one message, to each rank of `peers`.

    `peers` are distinct, and this rank is not among them.
    """

    peers: tuple[int, ...]
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive the next message of `peer` into `chunk`."""

    peer: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Reduce:
    """A step of a schedule: dst = operands[0] op operands[1] op ..., combined from left to right.

    There are at least two operands. An operand that is an int means the next message from the rank with this number. A
    chunk (consecutive blocks of a buffer) means local data. All operands have the size of `dst`. Each chunk is either
    `dst` itself or disjoint from it. The result is rounded to the dtype only once. `final` marks a result that contains
    every rank's contribution: if op is `avg`, it is divided by the number of ranks.
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
    """A step of a schedule: copy `src`, some blocks of a buffer, to `dst`; does nothing if both are the same memory.

    `src` and `dst` have the same size.
    """

    dst: Chunk
    src: Chunk


Step: TypeAlias = "Send | Recv | Reduce | Copy"
Block: TypeAlias = "tuple[int, int]"  # (IN or OUT, block number): names the size of a scratch block


@dataclass(frozen=True, slots=True)
class Schedule:
    """The list of steps that one rank takes in a collective.

    `grid`: the numbers of blocks of IN, the input, and of OUT, the output. `grid` is the same on every rank, even on
    ranks without one of the buffers: in a gather, only the root has OUT. `pooled`: ranks that share memory may instead
    run this allreduce in the pool, one shared buffer to which all ranks add their arrays.

    `flat`: None, or a pair of chunks (`published`, `read`) if the schedule has a single round. Then ranks that share
    memory need no messages. Each sender writes its chunk `published` to shared memory, and this rank reads the part
    `read` of every sender's chunk.
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
    """Builds the schedule of one rank, a list of steps: `send`, `reduce` and so on each add a step.

    `inp(first, count)`, `out(first, count)` and `scratch(...)` return chunks (consecutive blocks) of the input, the
    output and temporary memory. Steps have to be added in an order in which they could run one after another. `build()`
    returns the schedule.
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
        """Adds a temporary buffer to the schedule, and returns the chunk that consists of all its blocks.

        Each item of `blocks` is a block of the input or output buffer; a temporary block of the same size is made for
        it.
        """
        self._scratch.append(tuple(blocks))
        return Chunk(SCRATCH + len(self._scratch) - 1, 0, len(self._scratch[-1]))

    def like(self, chunk: Chunk) -> Chunk:
        """Adds a temporary buffer with as many blocks as `chunk`, of the same sizes.

        Returns all blocks of the new buffer as a chunk. `chunk`: blocks of the input or output buffer.
        """
        return self.scratch((chunk.buffer, b) for b in chunk.blocks)

    def pool(self) -> None:
        """Declares that ranks that share memory may run this allreduce in one shared buffer to which all ranks add."""
        self._pooled = True

    def flat(self, published: Chunk, read: Chunk) -> None:
        """Declares that the schedule is one round, in which this rank needs a part of every sender's data.

        `published`: the blocks that a sender offers, the same on every rank. `read`: the part of these blocks that this
        rank needs, at the same position on each sender. Ranks that share memory then need no messages: a sender writes
        its blocks to shared memory, and the others read them there.
        """
        self._flat = (published, read)

    def send(self, peers: int | Iterable[int], chunk: Chunk) -> None:
        self._steps.append(Send((peers,) if isinstance(peers, int) else tuple(peers), chunk))

    def recv(self, peer: int, chunk: Chunk) -> None:
        self._steps.append(Recv(peer, chunk))

    def reduce(self, dst: Chunk, *operands: Operand, final: bool = False) -> None:
        """Adds a step that reduces the operands from left to right, and writes the result to `dst`.

        An operand is a chunk of local data, or the number of a rank: then it is the next message from that rank.
        `final` marks a result that contains the data of all ranks.
        """
        self._steps.append(Reduce(dst, operands, final))

    def copy(self, dst: Chunk, src: Chunk) -> None:
        if dst != src:
            self._steps.append(Copy(dst, src))

    def build(self) -> Schedule:
        collective, algorithm, rank, size, root, grid = self._head
        scratch, steps = tuple(self._scratch), tuple(self._steps)
        return Schedule(collective, algorithm, rank, size, root, grid, scratch, steps, self._pooled, self._flat)
