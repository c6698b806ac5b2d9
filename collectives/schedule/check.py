"""Checks one rank's schedule without those of the other ranks; defines the error that describes a fault.

Invariant: if `check` accepts a schedule, it uses only ranks, buffers and blocks that exist, never writes to IN (the
input), and combines only chunks of equal size. Whether the schedules of all ranks compute the right result is proved by
`verify`.
"""

from __future__ import annotations

from typing import NoReturn

from collectives.schedule.conditions import collective
from collectives.schedule.dependencies import accesses
from collectives.schedule.form import IN, OUT, Chunk, Copy, Recv, Reduce, Schedule, Send, Step
from collectives.schedule.text import chunk_text, excerpt


class VerificationError(ValueError):
    """Raised if a schedule, the list of one rank's steps in a collective, is wrong.

    `rank` and `step` (an index from 0) say where; they are None if no single rank or step is at fault.
    """

    def __init__(
        self,
        problem: str,
        collective: str,
        algorithm: str,
        size: int,
        root: int = 0,
        rank: int | None = None,
        step: int | None = None,
        listing: str = "",
    ) -> None:
        where = f"{collective} {algorithm}, {size} ranks" + (f", root {root}" if root else "")
        if rank is not None:
            where += f", rank {rank}"
        if step is not None:
            where += f", step {step}"
        super().__init__(f"{where}: {problem}" + (f"\n{listing}" if listing else ""))
        self.problem = problem
        self.collective = collective
        self.algorithm = algorithm
        self.size = size
        self.root = root
        self.rank = rank
        self.step = step
        self.listing = listing

    def when(self, condition: str) -> VerificationError:
        """A copy of this error whose message begins with `condition`, the case in which it occurs ("in place")."""
        return type(self)(f"{condition}: {self.problem}", *self._head, self.listing)

    @property
    def _head(self) -> tuple[str, str, int, int, int | None, int | None]:
        return self.collective, self.algorithm, self.size, self.root, self.rank, self.step

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.problem, *self._head, self.listing)


def fail(schedule: Schedule, problem: str, step: int | None = None) -> NoReturn:
    raise VerificationError(
        problem,
        schedule.collective,
        schedule.algorithm,
        schedule.size,
        schedule.root,
        schedule.rank,
        step,
        excerpt(schedule, step),
    )


class Extents:
    """The sizes of a schedule's blocks as symbols, because the sizes in bytes are known only at run time.

    A schedule is the list of one rank's steps in a collective; it divides buffers into blocks. `extents[chunk]` lists
    an integer for each block of the chunk (consecutive blocks of a buffer). Blocks with the same integer have the same
    size.
    """

    def __init__(self, schedule: Schedule, uneven: bool) -> None:
        contract = collective(schedule.collective)
        grid = schedule.grid
        sizes = [[contract.extent(b, schedule.rank, i, grid, uneven) for i in range(grid[b])] for b in (IN, OUT)]
        self._sizes = sizes + [[sizes[buffer][block] for buffer, block in slot] for slot in schedule.scratch]

    def __getitem__(self, chunk: Chunk) -> list[int]:
        return self._sizes[chunk.buffer][chunk.first : chunk.first + chunk.count]


def check(schedule: Schedule, in_place: bool = False, uneven: bool = False) -> Extents:
    """Raise VerificationError unless `schedule`, the steps of one rank in a collective, is well formed.

    Returns the sizes of the schedule's blocks as symbols: blocks with equal symbols have the same size. `in_place`: IN
    and OUT, the input and output buffers, are the same memory. `uneven`: blocks may differ in size.
    """
    _check_head(schedule)
    extents = Extents(schedule, uneven)
    size, blocks = schedule.size, [*schedule.grid, *(len(slot) for slot in schedule.scratch)]
    contract = collective(schedule.collective)
    exists = [contract.has(b, schedule.rank, schedule.root) for b in (IN, OUT)] + [True] * len(schedule.scratch)
    for i, step in enumerate(schedule.steps):
        peers, (read, written) = peers_of(step), accesses(step)
        if len(peers) > 1 and len(set(peers)) < len(peers):
            fail(schedule, "names a rank twice", i)
        for peer in peers:
            if not 0 <= peer < size or peer == schedule.rank:
                fail(schedule, "names a rank that is not one of the others", i)
        for chunk in (*written, *read):
            buffer, first, count = chunk
            if count == 0:
                continue
            if not 0 <= buffer < len(blocks) or not exists[buffer]:
                fail(schedule, f"uses {chunk_text(chunk)}, a buffer that this rank does not have", i)
            if first < 0 or count < 0 or first + count > blocks[buffer]:
                fail(schedule, f"uses {chunk_text(chunk)} of a buffer with {blocks[buffer]} blocks", i)
        if isinstance(step, Send):
            if not peers:
                fail(schedule, "sends to no rank", i)
            continue
        if isinstance(step, Reduce):
            if not contract.reduces:
                fail(schedule, f"reduces, which {contract.name} does not ask for", i)
            if len(step.operands) < 2:
                fail(schedule, "reduces fewer than two operands", i)
        for dst in written:
            if dst.count and dst.buffer == IN:
                fail(schedule, "writes to IN", i)
            for source in read:
                if extents[source] != extents[dst]:
                    fail(schedule, f"combines {chunk_text(source)} with {chunk_text(dst)}, which differ in size", i)
                if source != dst and _overlap(source, dst, in_place):
                    fail(schedule, f"reads {chunk_text(source)} while it writes {chunk_text(dst)}, which overlap", i)
    return extents


def _check_head(schedule: Schedule) -> None:
    contract = collective(schedule.collective)
    if not 0 <= schedule.rank < schedule.size:
        fail(schedule, "rank is not within size")
    if not 0 <= schedule.root < schedule.size:
        fail(schedule, "root is not within size")
    if not contract.fits(schedule.grid, schedule.size):
        fail(schedule, f"a grid of {schedule.grid} does not fit {contract.name}")
    for number, slot in enumerate(schedule.scratch):
        for buffer, block in slot:
            if buffer not in (IN, OUT) or not 0 <= block < schedule.grid[buffer]:
                fail(schedule, f"scratch slot {number} names a block that is not there")


def peers_of(step: Step) -> tuple[int, ...]:
    """The ranks with which a step exchanges messages."""
    if isinstance(step, Recv):
        return (step.peer,)
    if isinstance(step, Copy):
        return ()
    return step.peers


def _overlap(a: Chunk, b: Chunk, in_place: bool) -> bool:
    """Whether two different chunks share blocks. With `in_place`, input and output count as one buffer."""
    one_buffer = a.buffer == b.buffer or (in_place and {a.buffer, b.buffer} == {IN, OUT})
    same = (a.first, a.count) == (b.first, b.count)
    return one_buffer and not same and a.first < b.first + b.count and b.first < a.first + a.count
