"""Dependencies: any interleaving of bytes that keeps to them ends like the listed order."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.algorithms import algorithms, schedule
from collectives.schedule import IN, NOTHING, OUT, SCRATCH, Builder, Chunk, Copy, Recv, Reduce, Schedule, Send
from collectives.schedule.dependencies import Dependency, dependencies

BLOCKS = 4
BUFFERS = (IN, OUT, SCRATCH, SCRATCH + 1)


def make(*steps: Send | Recv | Reduce | Copy) -> Schedule:
    slots = (((OUT, 0), (OUT, 1), (OUT, 2), (OUT, 3)),) * 2
    return Schedule("allreduce", "made_up", 0, 4, 0, (BLOCKS, BLOCKS), slots, steps)


@dataclass
class Bytes:
    """One rank's memory, byte by byte, and what its sends took; a byte's value is a tuple that tells its history."""

    schedule: Schedule
    offsets: list[int]  # where blocks begin, the same in every buffer
    in_place: bool

    def __post_init__(self) -> None:
        size = self.offsets[-1]
        self.memory: list[list[object]] = [[(buffer, x) for x in range(size)] for buffer in BUFFERS]
        if self.in_place:
            self.memory[OUT] = self.memory[IN]
        self.sent: dict[tuple[int, int], object] = {}

    def length(self, step: int) -> int:
        chunk = self.region(step)
        return self.offsets[chunk.first + chunk.count] - self.offsets[chunk.first]

    def region(self, step: int) -> Chunk:
        s = self.schedule.steps[step]
        return s.chunk if isinstance(s, Send | Recv) else s.dst

    def advance(self, number: int, offset: int) -> None:
        """Do byte `offset` of a step."""

        def at(chunk: Chunk) -> object:
            return self.memory[chunk.buffer][self.offsets[chunk.first] + offset]

        step = self.schedule.steps[number]
        if isinstance(step, Send):
            self.sent[number, offset] = at(step.chunk)
            return
        value: object
        if isinstance(step, Recv):
            value = ("message", number, offset)
        elif isinstance(step, Copy):
            value = at(step.src)
        else:
            value = tuple(at(o) if isinstance(o, Chunk) else ("message", number, o, offset) for o in step.operands)
        dst = self.region(number)
        self.memory[dst.buffer][self.offsets[dst.first] + offset] = value


def in_listed_order(run: Bytes) -> Bytes:
    for number in range(len(run.schedule.steps)):
        for offset in range(run.length(number)):
            run.advance(number, offset)
    return run


def in_random_order(run: Bytes, random: Random) -> Bytes:
    waits = dependencies(run.schedule, run.in_place)
    done = [0] * len(run.schedule.steps)
    lengths = [run.length(n) for n in range(len(done))]

    def may(number: int) -> bool:
        for d in waits[number]:
            behind = run.offsets[d.there] + done[d.step] - run.offsets[d.here]
            if done[d.step] < lengths[d.step] and done[number] >= behind:
                return False
        return done[number] < lengths[number]

    while able := [n for n in range(len(done)) if may(n)]:
        number = random.choice(able)
        for _ in range(random.randint(1, 3)):
            if may(number):
                run.advance(number, done[number])
                done[number] += 1
    assert done == lengths, "dependencies leave steps that can never run"
    return run


def outcome(run: Bytes) -> tuple[object, ...]:
    return run.memory, run.sent


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, list[int]]:
    """A schedule and where its blocks begin; blocks have one size, or sizes of their own."""
    one = st.integers(1, 3).map(lambda size: [size] * BLOCKS)
    sizes = draw(one | st.lists(st.integers(0, 3), min_size=BLOCKS, max_size=BLOCKS))

    def chunk(count: int, buffers: tuple[int, ...] = BUFFERS) -> Chunk:
        return Chunk(draw(st.sampled_from(buffers)), draw(st.integers(0, BLOCKS - count)), count)

    def fits(source: Chunk, dst: Chunk) -> bool:
        """Of one size, and either the same memory or apart."""
        if [sizes[b] for b in source.blocks] != [sizes[b] for b in dst.blocks]:
            return False
        same_memory = source.buffer == dst.buffer or {source.buffer, dst.buffer} == {IN, OUT}
        apart = source.first >= dst.first + dst.count or dst.first >= source.first + source.count
        return not same_memory or apart or source.first == dst.first

    steps: list[Send | Recv | Reduce | Copy] = []
    for _ in range(draw(st.integers(2, 9))):
        count = draw(st.integers(1, 3))
        dst = chunk(count, (OUT, SCRATCH, SCRATCH + 1))
        sources = [s for s in (chunk(count) for _ in range(2)) if fits(s, dst)]
        kind = draw(st.sampled_from(("send", "recv", "reduce", "copy")))
        if kind == "send":
            steps.append(Send((draw(st.integers(1, 3)),), chunk(count)))
        elif kind == "reduce":
            steps.append(Reduce(dst, (1, 2, *sources)))
        elif kind == "copy" and sources:
            steps.append(Copy(dst, sources[0]))
        else:
            steps.append(Recv(1, dst))
    return make(*steps), [sum(sizes[:i]) for i in range(BLOCKS + 1)]


@settings(max_examples=400, derandomize=True, deadline=None)
@given(cases(), st.booleans(), st.integers(0, 999))
def test_any_interleaving_gives_what_the_listed_order_gives(
    case: tuple[Schedule, list[int]], in_place: bool, seed: int
) -> None:
    schedule, offsets = case
    expected = outcome(in_listed_order(Bytes(schedule, offsets, in_place)))
    random = Random(seed)
    for _ in range(4):
        assert outcome(in_random_order(Bytes(schedule, offsets, in_place), random)) == expected


def test_the_interleavings_tried_would_show_a_missing_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    written_then_sent = make(Recv(1, Chunk(OUT)), Send((2,), Chunk(OUT)))
    offsets = [0, 3, 3, 3, 3]
    expected = outcome(in_listed_order(Bytes(written_then_sent, offsets, False)))
    monkeypatch.setitem(globals(), "dependencies", lambda schedule, _in_place: [()] * len(schedule.steps))
    outcomes = [outcome(in_random_order(Bytes(written_then_sent, offsets, False), Random(s))) for s in range(20)]
    assert any(o != expected for o in outcomes)


def test_what_is_read_waits_for_who_wrote_it_with_the_places_of_both_regions() -> None:
    found = dependencies(make(Recv(1, Chunk(OUT, 1, 3)), Send((2,), Chunk(OUT, 2, 1))))
    assert found == ((), (Dependency(0, OUT, there=1, here=2),))


def test_what_is_overwritten_waits_for_its_readers_and_through_them_for_its_writer() -> None:
    block = Chunk(OUT)
    found = dependencies(make(Recv(1, block), Send((2,), block), Send((3,), block), Recv(1, block)))
    assert found[3] == (Dependency(1, OUT, 0, 0), Dependency(2, OUT, 0, 0))


def test_what_nobody_read_waits_for_its_writer() -> None:
    found = dependencies(make(Recv(1, Chunk(OUT)), Recv(2, Chunk(OUT))))
    assert found[1] == (Dependency(0, OUT, 0, 0),)


def test_a_reduction_into_its_own_operand_does_not_wait_for_itself() -> None:
    block = Chunk(OUT)
    found = dependencies(make(Recv(1, block), Reduce(block, (block, 2)), Send((1,), block)))
    assert found[1] == (Dependency(0, OUT, 0, 0),)
    assert found[2] == (Dependency(1, OUT, 0, 0),)


def test_in_and_out_are_one_memory_only_in_place() -> None:
    steps = make(Send((1,), Chunk(IN, 1)), Recv(1, Chunk(OUT, 1)))
    assert dependencies(steps) == ((), ())
    assert dependencies(steps, in_place=True) == ((), (Dependency(0, OUT, 1, 1),))


def test_a_copy_onto_itself_takes_part_in_nothing() -> None:
    steps = make(Copy(Chunk(OUT), Chunk(IN)), Send((1,), Chunk(OUT)))
    assert dependencies(steps)[1] == (Dependency(0, OUT, 0, 0),)
    assert dependencies(steps, in_place=True) == ((), ())


def test_different_grids_cannot_be_one_memory() -> None:
    with pytest.raises(ValueError, match="cannot be the same memory"):
        dependencies(Builder("allgather", "x", 0, 2, grid=(1, 2)).build(), in_place=True)


def test_empty_chunks_wait_for_nothing() -> None:
    assert dependencies(make(Recv(1, NOTHING), Send((1,), NOTHING))) == ((), ())


def test_a_ring_waits_for_nothing_but_its_data() -> None:
    """One dependency a step at most: what it passes on, or what it overwrites."""
    for algorithm in ("ring", "two_shot", "halving_doubling"):
        found = dependencies(schedule("allreduce", algorithm, 3, 8), in_place=True)
        assert max(len({d.step for d in waits}) for waits in found) <= (1 if algorithm != "halving_doubling" else 3)


@pytest.mark.parametrize("algorithm", algorithms("allreduce"), ids=str)
def test_in_place_only_adds(algorithm: object) -> None:
    assert callable(algorithm)
    for rank in range(6):
        plan = algorithm(rank, 6)
        apart = {(i, d.step) for i, waits in enumerate(dependencies(plan)) for d in waits}
        together = {(i, d.step) for i, waits in enumerate(dependencies(plan, in_place=True)) for d in waits}
        assert apart <= together or any(isinstance(s, Copy) for s in plan.steps)
