"""Proves that an algorithm fulfils the contract of its collective, by running it on symbolic values.

Invariant: schedules that pass are right for every input, element type and count, on links without buffers and with any
timing. A proof is for one number of ranks, one root, one layout of ranks on hosts, and for IN and OUT that are either
separate or the same memory. The proof shows that

- no rank waits forever, and every message has the size that its receiver expects, block by block;
- no block is read before it is written, and no value is overwritten, or left in scratch memory, without being read;
- every rank ends with the result that module `conditions` demands, with each rank's contribution counted exactly once;
- scan, exscan, and algorithms that declare `in_order`, combine operands in the order of ranks;
- ranks that end with the same reduction computed it by the same expression with operands in the same order, so
  they hold the same bits;
- exactly the reductions that contain every rank's contribution are marked as `final`, and none in scan and exscan;
- other orders in which the steps could have run give the same results.

A symbolic value is the number of an expression, and equal expressions have the same number. So two values are compared
as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from random import Random
from typing import NoReturn

from collectives.schedule.algorithm import Algorithm
from collectives.schedule.check import Extents, VerificationError, check, fail
from collectives.schedule.conditions import Leaf, Prefix, collective
from collectives.schedule.dependencies import accesses
from collectives.schedule.form import OUT, SCRATCH, Chunk, Copy, Recv, Reduce, Schedule, Send
from collectives.schedule.group import Group
from collectives.schedule.layout import Layout, apart, even
from collectives.schedule.play import Play
from collectives.schedule.symbols import Memory, Values
from collectives.schedule.text import chunk_text

_EVERY_ROOT_UP_TO = 8
_EVERY_LAYOUT_UP_TO = 12


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one collective in a group; each number is the largest of any rank.

    - `rounds`: the number of messages in the longest chain in which each message depends on the previous message
    - `steps`: the number of sends, receives, reductions and copies of a rank
    - `messages`, `blocks`: how many messages and blocks a rank sends; a send to several peers counts once for each peer
    - `scratch`: the number of blocks of temporary memory
    """

    rounds: int
    steps: int
    messages: int
    blocks: int
    scratch: int


@dataclass(frozen=True, slots=True)
class Line:
    """The result of verifying an algorithm for groups of `size` ranks.

    `roots`, `layouts`: how many roots, and how many arrangements of ranks on hosts, were verified. `grid`: the numbers
    of blocks of the input and output buffers. `grid` and `cost` are for the first root and arrangement.
    """

    size: int
    roots: int
    layouts: int
    grid: tuple[int, int]
    cost: Cost


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` has proved about an algorithm. `str(report)` is a table with one line for each number of ranks."""

    collective: str
    algorithm: str
    in_place: bool  # also with IN and OUT in the same memory
    uneven: bool  # also with blocks of different sizes
    in_order: bool  # also for reductions that are not commutative
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        claims = ["in place too"] * self.in_place + ["blocks of any sizes"] * self.uneven
        claims += ["in the order of ranks"] * self.in_order
        head = f"{self.collective} {self.algorithm}: verified" + "".join(f", {claim}" for claim in claims)
        names = ("ranks", "roots", "layouts", "IN", "OUT", "rounds", "steps", "messages", "blocks", "scratch")
        rows = [
            (n.size, n.roots, n.layouts, *n.grid, c.rounds, c.steps, c.messages, c.blocks, c.scratch)
            for n in self.lines
            for c in (n.cost,)
        ]
        return "\n".join(
            [head, "  ".join(names)]
            + ["  ".join(f"{v:{len(name)}}" for v, name in zip(row, names, strict=True)) for row in rows]
        )


def verify(
    algorithm: Algorithm,
    sizes: Iterable[int],
    *,
    roots: Iterable[int] | None = None,
    layouts: Callable[[int], Iterable[Layout]] | None = None,
    orders: int = 1,
    seed: int = 0,
) -> Report:
    """Prove that `algorithm` computes the right result in groups of `sizes` ranks, or raise VerificationError.

    Returns a `Report`. Sizes that the algorithm does not support are skipped.

    - `roots`: the roots to verify; ranks outside of a group are skipped. By default every rank of groups of up to 8,
      and some ranks of larger groups
    - `layouts(size)`: arrangements of ranks on hosts, used if the algorithm depends on them; by default
      `sample_layouts`
    - `orders`: in how many random orders the steps are run, after a first order that is not random
    - `seed`: of the random generator
    """
    rooted = algorithm.contract.rooted
    given = None if roots is None else tuple(roots)
    lines = []
    for size in sizes:
        if not algorithm.sizes(size):
            continue
        chosen = [0]
        if rooted:
            some = range(size) if size <= _EVERY_ROOT_UP_TO else (0, 1, size // 2, size - 1)
            chosen = [r for r in (some if given is None else given) if r < size]
        placed = tuple((layouts or sample_layouts)(size)) if algorithm.hosts else (apart(size),)
        for layout in placed:
            for root in chosen:
                play = _verify_one(algorithm, size, root, layout, orders, seed)
                if root == chosen[0] and layout is placed[0]:
                    lines.append(Line(size, len(chosen), len(placed), play.group.schedules[0].grid, cost(play)))
    return Report(
        algorithm.collective, algorithm.name, algorithm.in_place, algorithm.uneven, algorithm.in_order, tuple(lines)
    )


def sample_layouts(size: int) -> tuple[Layout, ...]:
    """Returns arrangements of `size` ranks on hosts: equal and unequal hosts, consecutive and interleaved ranks.

    For up to 12 ranks, the arrangements include one host for each rank, and one host for all ranks.
    """
    unequal = Layout.of(islice((host for host in count() for _ in range(1 + host % 3)), size))
    mixed = Layout.of((rank * rank) % 5 for rank in range(size))
    if size > _EVERY_LAYOUT_UP_TO:
        found = [even(size, 4), unequal, mixed]
    else:
        in_turn = [Layout.of(rank % hosts for rank in range(size)) for hosts in (2, 3)]
        found = [apart(size), even(size, size), even(size, 2), even(size, 3), unequal, mixed, *in_turn]
    return tuple(dict.fromkeys(found))


def _verify_one(algorithm: Algorithm, size: int, root: int, layout: Layout, orders: int, seed: int) -> Play:
    schedules = [algorithm(rank, size, root, layout) for rank in range(size)]
    _check_names(algorithm, schedules, size, root)
    modes = (False, True) if algorithm.in_place else (False,)
    try:
        return _prove(schedules, modes, algorithm.uneven, orders, seed, algorithm.in_order)[0]
    except VerificationError as error:
        if algorithm.hosts:
            raise error.when(str(layout)) from None
        raise


def _check_names(algorithm: Algorithm, group: Sequence[Schedule], size: int, root: int) -> None:
    for rank, s in enumerate(group):
        named = (s.collective, s.algorithm, s.rank, s.size, s.root)
        wanted = (algorithm.collective, algorithm.name, rank, size, root)
        if named != wanted:
            problem = f"the schedule calls itself {named} where it should be {wanted}"
            raise VerificationError(problem, algorithm.collective, algorithm.name, size, root, rank)
        if s.grid != group[0].grid:
            problem = f"has a grid of {s.grid} where rank 0 has {group[0].grid}"
            raise VerificationError(problem, algorithm.collective, algorithm.name, size, root, rank)


def verify_group(
    schedules: Sequence[Schedule], *, in_place: bool = False, uneven: bool = False, orders: int = 1, seed: int = 0
) -> None:
    """Prove that `schedules`, one for each rank, give the right result, or raise VerificationError.

    `in_place`: the input and output buffers are the same memory. `uneven`: blocks may have different sizes. `orders`:
    in how many random orders the steps are run, after a first order that is not random. `seed`: of the random
    generator.
    """
    _prove(schedules, (in_place,), uneven, orders, seed)


def _prove(
    schedules: Sequence[Schedule],
    modes: tuple[bool, ...],
    uneven: bool,
    orders: int,
    seed: int,
    in_order: bool = False,
) -> list[Play]:
    """Prove the schedules once for each of `modes`, and return the `Play` of each proof.

    A mode says whether IN and OUT are the same memory.
    """
    extents = [check(schedule, any(modes), uneven) for schedule in schedules]
    group = Group(schedules)
    _check_sizes(group, extents)
    _check_flat(group)
    values = Values(schedules[0].collective, in_order)
    start = [Memory(schedule, values) for schedule in schedules]
    return [_play(group, values, start, in_place, orders, seed) for in_place in modes]


def _play(group: Group, values: Values, start: Sequence[Memory], in_place: bool, orders: int, seed: int) -> Play:
    """Run the group's steps in a fixed order, then in `orders` random orders, and compare the results.

    `start`: each rank's memory at the beginning.
    """
    play = Play(group, in_place)
    try:
        result = _run(play, values, [memory.copy(in_place) for memory in start], None)
        for order in range(orders):
            memories = [memory.copy(in_place) for memory in start]
            if _run(play, values, memories, Random(seed + order)) != result:
                first = group.schedules[0]
                problem = "the result depends on the order in which steps happen to run"
                raise VerificationError(problem, first.collective, first.algorithm, first.size, first.root)
    except VerificationError as error:
        if in_place:
            raise error.when("in place") from None
        raise
    return play


def _check_sizes(group: Group, extents: Sequence[Extents]) -> None:
    for n, sends in enumerate(group.sends):
        if not sends:
            continue
        step = group.steps[n]
        assert isinstance(step, (Recv, Reduce))
        chunk = step.chunk if isinstance(step, Recv) else step.dst
        expected = extents[group.rank_of[n]][chunk]
        for send in sends:
            sent, sender = group.sent(send), group.rank_of[send]
            if extents[sender][sent] != expected:
                group.fail(
                    n,
                    f"expects {chunk_text(chunk)} from rank {sender}, whose step {send - group.start[sender]} sends "
                    f"{chunk_text(sent)}: they differ in size",
                )


def _check_flat(group: Group) -> None:
    """Check that the chunks that ranks publish and read through shared memory are those of the schedule's messages."""
    first = group.schedules[0]
    published = {None if s.flat is None else s.flat[0] for s in group.schedules}
    if published == {None}:
        return
    if len(published) > 1:
        problem = "the exchange is flat on some ranks only, or they publish different chunks"
        raise VerificationError(problem, first.collective, first.algorithm, first.size, first.root)
    for n, sends in enumerate(group.sends):
        for send in sends:
            given, receiver = group.steps[send], group.schedules[group.rank_of[n]]
            assert isinstance(given, Send) and receiver.flat is not None
            if given.chunk != receiver.flat[1]:
                group.fail(
                    n,
                    f"is sent {chunk_text(given.chunk)} by rank {group.rank_of[send]}, but would read "
                    f"{chunk_text(receiver.flat[1])} of a flat exchange",
                )


def _run(play: Play, values: Values, memories: Sequence[Memory], random: Random | None) -> list[list[int]]:
    """Run all ranks once; returns OUT of each rank at the end."""
    group, size = play.group, len(memories)

    def read(n: int, chunk: Chunk) -> list[int]:
        buffer, first, count = chunk
        memory = memories[group.rank_of[n]]
        taken = memory.values[buffer][first : first + count]
        if count == 1:  # most chunks
            memory.unread[buffer][first] = 0
            if taken[0]:
                return taken
        if 0 in taken:
            group.fail(n, f"reads {chunk_text(Chunk(buffer, first + taken.index(0)))}, to which nothing was written")
        memory.unread[buffer][first : first + count] = bytes(count)
        return taken

    def write(n: int, chunk: Chunk, new: list[int]) -> None:
        buffer, first, count = chunk
        memory = memories[group.rank_of[n]]
        if count == 1 and not memory.unread[buffer][first]:
            memory.values[buffer][first] = new[0]
            memory.unread[buffer][first] = 1
            return
        at = memory.unread[buffer].find(1, first, first + count)
        if at >= 0:
            group.fail(n, f"overwrites {chunk_text(Chunk(buffer, at))}, which has not been read")
        memory.values[buffer][first : first + count] = new
        memory.unread[buffer][first : first + count] = b"\1" * count

    for n in play.events(random):
        step = group.steps[n]
        if isinstance(step, Recv):
            send = group.sends[n][0]
            write(n, step.chunk, read(send, group.sent(send)))
        elif isinstance(step, Copy):
            if not memories[group.rank_of[n]].same(step.dst, step.src):
                write(n, step.dst, read(n, step.src))
        elif isinstance(step, Reduce):
            arrived = iter([read(send, group.sent(send)) for send in group.sends[n]])
            operands = [read(n, o) if isinstance(o, Chunk) else next(arrived) for o in step.operands]
            new: list[int] = []
            for block in zip(*operands, strict=True):
                value = values.reduced(block)
                if isinstance(value, str):
                    group.fail(n, value)
                if values.is_final(value, size) != step.final:
                    missing = values.missing(value, size)
                    lacks = f"lacks ranks {missing}" if missing else "its result is a prefix"
                    group.fail(n, f"is final, yet {lacks}" if step.final else "is complete, yet not final")
                new.append(value)
            write(n, step.dst, new)
    _check_end(group, values, memories)
    return [memory.values[OUT] for memory in memories]


def _check_end(group: Group, values: Values, memories: Sequence[Memory]) -> None:
    computed: dict[int, tuple[int, int]] = {}  # block of a total -> its value on the first rank with it, and that rank
    size = len(memories)
    for schedule, memory in zip(group.schedules, memories, strict=True):
        contract = collective(schedule.collective)
        for slot, unread in enumerate(memory.unread[SCRATCH:]):
            if 1 in unread:
                chunk = Chunk(SCRATCH + slot, unread.index(1))
                _fail_at_end(schedule, chunk, f"leaves {chunk_text(chunk)}, which nothing has read")
        if not contract.has(OUT, schedule.rank, schedule.root):
            continue

        def fail_at(block: int, problem: str, schedule: Schedule = schedule) -> NoReturn:
            chunk = Chunk(OUT, block)
            _fail_at_end(schedule, chunk, f"{chunk_text(chunk)} {problem}")

        for block, value in enumerate(memory.values[OUT]):
            wanted = contract.expected(schedule.rank, schedule.root, block, schedule.grid)
            if isinstance(wanted, Leaf):
                if value != values.leaf(*wanted):
                    what = f"{values.text(value)} instead of block {wanted.block} of rank {wanted.rank}"
                    fail_at(block, f"ends with {what}")
                continue
            other, rank = computed.get(wanted.block, (0, 0))
            if other and other == value:
                continue  # found right on `rank`
            ranks = wanted.ranks if isinstance(wanted, Prefix) else size
            if not values.is_total(value, wanted.block, ranks):
                whose = "all ranks" if ranks == size else f"ranks 0 to {ranks - 1}"
                what = f"{values.text(value)} instead of block {wanted.block} of {whose}"
                fail_at(block, f"ends with {what}")
            if values.in_order and not values.is_ordered(value):
                fail_at(block, "is not reduced in the order of ranks")
            if isinstance(wanted, Prefix):
                continue
            if other and contract.name != "barrier":
                why = f"is reduced in another order of operands than on rank {rank}, so that its bits may differ"
                fail_at(block, why)
            computed.setdefault(wanted.block, (value, schedule.rank))


def _fail_at_end(schedule: Schedule, chunk: Chunk, problem: str) -> NoReturn:
    """Raise the error, with the step that wrote the block last."""
    for i in reversed(range(len(schedule.steps))):
        for written in accesses(schedule.steps[i])[1]:
            if written.buffer == chunk.buffer and chunk.first in written.blocks:
                fail(schedule, problem, i)
    fail(schedule, problem)


def cost(play: Play) -> Cost:
    """Returns the cost of one collective in a group, such as its rounds and messages.

    `play`: the steps of all ranks, which must complete without a deadlock.
    """
    schedules = play.group.schedules
    sends = [[s for s in schedule.steps if isinstance(s, Send)] for schedule in schedules]
    return Cost(
        max(play.rounds(), default=0),
        max(len(schedule.steps) for schedule in schedules),
        max(sum(len(s.peers) for s in mine) for mine in sends),
        max(sum(len(s.peers) * s.chunk.count for s in mine) for mine in sends),
        max(sum(len(slot) for slot in schedule.scratch) for schedule in schedules),
    )
