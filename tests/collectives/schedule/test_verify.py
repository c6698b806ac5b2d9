"""Broken schedules are rejected, each with the message that tells what is wrong and where."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from collectives.algorithms import get, schedule
from collectives.schedule import (
    IN,
    OUT,
    SCRATCH,
    Algorithm,
    Builder,
    Chunk,
    Copy,
    Recv,
    Reduce,
    Schedule,
    Send,
    Step,
    VerificationError,
    play,
    verify,
)
from collectives.schedule.conditions import Collective
from collectives.schedule.verification import sample_layouts, verify_group


def group(collective: str, name: str, size: int, root: int = 0) -> list[Schedule]:
    return [schedule(collective, name, rank, size, root) for rank in range(size)]


def changed(schedules: list[Schedule], rank: int, change: Callable[[list[Step]], object]) -> list[Schedule]:
    """The group with one rank's steps changed."""
    steps = list(schedules[rank].steps)
    change(steps)
    return [replace(s, steps=tuple(steps)) if s.rank == rank else s for s in schedules]


def rejected(schedules: list[Schedule], in_place: bool = False) -> VerificationError:
    with pytest.raises(VerificationError) as caught:
        verify_group(schedules, in_place=in_place)
    return caught.value


def both(collective: str, make: Callable[[Builder], None], grid: tuple[int, int] = (1, 1)) -> list[Schedule]:
    """Two ranks that do the same, but for the numbers of their peers: rank 0 as written."""
    result = []
    for rank in range(2):
        b = Builder(collective, "made_up", rank, 2, grid)
        make(b)
        steps = tuple(_for_other(s) for s in b.build().steps) if rank else b.build().steps
        result.append(replace(b.build(), steps=steps))
    return result


def _for_other(step: Step) -> Step:
    if isinstance(step, Send):
        return replace(step, peers=(0,))
    if isinstance(step, Recv):
        return replace(step, peer=0)
    if isinstance(step, Reduce):
        return replace(step, operands=tuple(o if isinstance(o, Chunk) else 0 for o in step.operands))
    return step


# --- flat exchanges


def test_a_flat_exchange_in_which_another_part_is_read_than_sent() -> None:
    wrong = [replace(s, flat=(Builder.inp(0, 2), Builder.inp(0))) for s in group("alltoall", "direct", 2)]
    assert "is sent IN[1] by rank 0, but would read IN[0] of a flat exchange" in str(rejected(wrong))


def test_an_exchange_that_is_flat_on_some_ranks_only() -> None:
    schedules = group("allreduce", "one_shot", 3)
    wrong = [*schedules[:2], replace(schedules[2], flat=None)]
    assert "flat on some ranks only" in str(rejected(wrong))


# --- messages


def test_a_missing_receive() -> None:
    error = rejected(changed(group("allreduce", "ring", 4), 2, lambda steps: steps.pop()))
    assert (error.rank, error.step) == (1, 10)
    assert "sends message 6 to rank 2, which receives only 5" in str(error)


def test_a_missing_send() -> None:
    error = rejected(changed(group("allreduce", "ring", 4), 2, lambda steps: steps.pop(-2)))
    assert (error.rank, error.step) == (3, 11)
    assert "receives more than the 5 messages that rank 2 sends to it" in str(error)


def test_messages_of_different_sizes() -> None:
    def swap(steps: list[Step]) -> None:
        steps[-1], steps[-3] = steps[-3], steps[-1]

    error = rejected(changed(group("allreduce", "ring", 4), 2, swap))
    assert "they differ in size" in str(error)
    assert error.rank == 2


def test_equal_shares_do_not_prove_uneven_blocks() -> None:
    bruck = group("alltoall", "bruck", 6)
    verify_group(bruck)
    with pytest.raises(VerificationError, match="differ in size"):
        verify_group(bruck, uneven=True)


def test_a_ring_in_which_everyone_waits_to_receive_first() -> None:
    def receive_first(rank: int, size: int) -> Schedule:
        b = Builder("allreduce", "receive_first", rank, size, grid=(1, 1))
        b.reduce(b.out(), (rank - 1) % size, b.inp())
        b.send((rank + 1) % size, b.out())
        return b.build()

    error = rejected([receive_first(rank, 3) for rank in range(3)])
    assert "deadlock: each of these waits for the next" in str(error)
    assert all(f"rank {r} step 1 (send OUT[0] >{(r + 1) % 3})" in str(error) for r in range(3))
    assert all(f"rank {r} step 0 (reduce OUT[0] = <{(r - 1) % 3} + IN[0])" in str(error) for r in range(3))


def test_a_deadlock_through_the_order_of_messages() -> None:
    def make(b: Builder) -> None:
        slot = b.like(b.inp(0))
        b.recv(1, slot)
        b.send(1, slot)
        b.send(1, b.inp(0))
        b.reduce(b.out(), 1, b.inp(0), final=True)

    error = rejected(both("allreduce", make))
    assert "deadlock" in str(error)


def test_a_deadlock_in_place_only() -> None:
    one_shot = group("allreduce", "one_shot", 2)
    verify_group(one_shot)
    error = rejected(one_shot, in_place=True)
    assert "in place: deadlock" in str(error)
    assert "step 0 (send IN[0] >1)" in str(error)


def test_a_reduction_takes_all_its_messages_at_once() -> None:
    """Rank 0 wants one message each from 1 and 2, but 1 sends its own only when 2 has told it that it has sent."""

    def plan(together: bool) -> list[Schedule]:
        zero, one, two = (Builder("reduce", "made_up", rank, 3, grid=(1, 1)) for rank in range(3))
        if together:
            zero.reduce(zero.out(), zero.inp(), 1, 2, final=True)
        else:
            got = zero.like(zero.inp())
            zero.reduce(got, zero.inp(), 2)
            zero.reduce(zero.out(), got, 1, final=True)
        message, sent, mine = one.like(one.inp()), two.like(two.inp()), one.like(one.inp())
        two.send([0, 1], two.inp())  # complete when both have it
        two.copy(sent, two.inp())
        two.send(1, sent)
        one.recv(2, message)
        one.recv(2, mine)
        one.copy(message, mine)  # the first message is lost: found out only by those who get this far
        one.send(0, message)
        return [b.build() for b in (zero, one, two)]

    assert "deadlock" in str(rejected(plan(together=True)))
    assert "overwrites S0[0]" in str(rejected(plan(together=False)))


# --- values


def test_swapped_operands() -> None:
    def make(b: Builder) -> None:
        slot = b.like(b.inp())
        b.send(1, b.inp())
        b.recv(1, slot)
        b.reduce(b.out(), b.inp(), slot, final=True)

    error = rejected(both("allreduce", make))
    assert "OUT[0] is reduced in another order of operands than on rank 0" in str(error)
    assert (error.rank, error.step) == (1, 2)


def test_double_counting() -> None:
    def twice(steps: list[Step]) -> None:
        last = steps[-1]
        assert isinstance(last, Reduce)
        steps[-1] = replace(last, operands=(*last.operands, Chunk(IN)))

    error = rejected(changed(group("allreduce", "one_shot", 3), 1, twice))
    assert "counts rank 1 twice" in str(error)
    assert (error.rank, error.step) == (1, 1)


def test_mixed_blocks() -> None:
    """Equal shares of a reduce_scatter are all of one size, so only the values give it away."""

    def wrong(steps: list[Step]) -> None:
        first = steps[1]
        assert isinstance(first, Reduce)
        steps[1] = replace(first, operands=(first.operands[0], Chunk(IN, 3)))

    error = rejected(changed(group("reduce_scatter", "ring", 4), 0, wrong))
    assert "mixes contributions to block 2 with contributions to block 3" in str(error)
    assert (error.rank, error.step) == (0, 1)


def test_a_lost_contribution() -> None:
    plan = group("reduce", "direct", 3)
    plan[0] = replace(plan[0], steps=(Reduce(Chunk(OUT), (Chunk(IN), 1)),))
    plan[2] = replace(plan[2], steps=())
    error = rejected(plan)
    assert "OUT[0] ends with block 0 of ranks [0, 1] instead of block 0 of all ranks" in str(error)
    assert (error.rank, error.step) == (0, 0)


def test_data_in_the_wrong_place() -> None:
    def make(b: Builder) -> None:
        b.send(1, b.inp())
        b.recv(1, b.out(0))
        b.copy(b.out(1), b.inp())

    error = rejected(both("allgather", make, grid=(1, 2)))
    assert "OUT[0] ends with block 0 of rank 1 instead of block 0 of rank 0" in str(error)
    assert (error.rank, error.step) == (0, 1)


def test_a_result_that_never_came() -> None:
    plan = group("allgather", "ring", 1)
    error = rejected([replace(plan[0], steps=())])
    assert "OUT[0] ends with nothing instead of block 0 of rank 0" in str(error)


@pytest.mark.parametrize("final", [True, False])
def test_a_wrong_final_flag(final: bool) -> None:
    def flip(steps: list[Step]) -> None:
        at = 1 if final else 5
        step = steps[at]
        assert isinstance(step, Reduce)
        steps[at] = replace(step, final=final)

    error = rejected(changed(group("allreduce", "ring", 4), 3, flip))
    assert error.rank == 3
    assert ("is final, yet lacks ranks [0, 1]" if final else "is complete, yet not final") in str(error)


# --- memory


def test_reading_what_nobody_wrote() -> None:
    def make(b: Builder) -> None:
        slot = b.like(b.inp())
        b.send(1, slot)
        b.reduce(b.out(), b.inp(), 1, final=True)

    error = rejected(both("allreduce", make))
    assert "reads S0[0], to which nothing was written" in str(error)
    assert error.step == 0


def test_overwriting_what_nobody_read() -> None:
    def make(b: Builder) -> None:
        b.send(1, b.inp())
        b.send(1, b.inp())
        b.recv(1, b.out(0))
        b.recv(1, b.out(0))

    error = rejected(both("allgather", make, grid=(1, 2)))
    assert "overwrites OUT[0], which has not been read" in str(error)
    assert error.step == 3


def test_overwriting_the_input_in_place() -> None:
    """Right with separate memory; in place the own contribution is gone when its turn comes."""
    schedules = []
    for rank in range(2):
        b = Builder("allreduce", "made_up", rank, 2, grid=(1, 1))
        slot = b.like(b.inp())
        b.send(1 - rank, b.inp())
        b.recv(1 - rank, slot)
        b.copy(b.out(), slot)
        b.reduce(b.out(), *([b.inp(), b.out()] if rank == 0 else [b.out(), b.inp()]), final=True)
        schedules.append(b.build())
    verify_group(schedules)
    error = rejected(schedules, in_place=True)
    assert error.rank is not None
    assert error.problem == f"in place: counts rank {1 - error.rank} twice"
    assert error.step == 3


def test_scratch_left_unread() -> None:
    def spare(steps: list[Step]) -> None:
        steps.insert(0, Copy(Chunk(SCRATCH), Chunk(IN)))

    plan = group("allreduce", "one_shot", 2)
    plan[0] = replace(plan[0], scratch=(((IN, 0),),))
    error = rejected(changed(plan, 0, spare))
    assert "leaves S0[0], which nothing has read" in str(error)
    assert (error.rank, error.step) == (0, 0)


def test_dependencies_that_forget_something_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "dependencies", lambda schedule, in_place: ((),) * len(schedule.steps))
    for name in ("ring", "halving_doubling", "recursive_doubling"):
        with pytest.raises(VerificationError):
            verify(get("allreduce", name), [8], orders=5)


# --- steps that make no sense


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (Send((), Chunk(IN)), "sends to no rank"),
        (Send((1, 1), Chunk(IN)), "names a rank twice"),
        (Send((0,), Chunk(IN)), "not one of the others"),
        (Send((2,), Chunk(IN)), "not one of the others"),
        (Send((1,), Chunk(IN, 1)), "IN[1] of a buffer with 1 blocks"),
        (Send((1,), Chunk(SCRATCH + 1)), "S1[0], a buffer that this rank does not have"),
        (Recv(1, Chunk(IN)), "writes to IN"),
        (Copy(Chunk(IN), Chunk(OUT)), "writes to IN"),
        (Reduce(Chunk(OUT), (Chunk(IN),)), "fewer than two operands"),
        (Reduce(Chunk(OUT), (1, 1)), "names a rank twice"),
        (Copy(Chunk(SCRATCH, 0, 2), Chunk(SCRATCH, 1, 2)), "which overlap"),
        (Copy(Chunk(OUT), Chunk(SCRATCH, 0, 2)), "differ in size"),
    ],
)
def test_steps_that_make_no_sense(step: Step, problem: str) -> None:
    plan = group("allreduce", "one_shot", 2)
    plan[0] = replace(plan[0], scratch=(((IN, 0), (IN, 0), (IN, 0)),))
    error = rejected(changed(plan, 0, lambda steps: steps.insert(0, step)))
    assert problem in str(error)
    assert (error.rank, error.step) == (0, 0)


def test_buffers_that_only_the_root_has() -> None:
    error = rejected(changed(group("gather", "linear", 3), 2, lambda s: s.insert(0, Copy(Chunk(OUT, 2), Chunk(IN)))))
    assert "uses OUT[2], a buffer that this rank does not have" in str(error)


def test_reductions_where_none_are_asked_for() -> None:
    step = Reduce(Chunk(OUT), (Chunk(IN), 1))
    error = rejected(changed(group("allgather", "direct", 2), 0, lambda s: s.insert(0, step)))
    assert "reduces, which allgather does not ask for" in str(error)


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("grid", (2, 1), "a grid of (2, 1) does not fit allreduce"),
        ("scratch", (((OUT, 1),),), "scratch slot 0 names a block that is not there"),
        ("root", 2, "root is not within size"),
        ("rank", 2, "rank is not within size"),
    ],
)
def test_heads_that_make_no_sense(part: str, value: object, problem: str) -> None:
    plan = group("allreduce", "one_shot", 2)
    plan[1] = replace(plan[1], **{part: value})  # type: ignore[arg-type]
    assert problem in str(rejected(plan))


def test_schedules_that_go_by_another_name() -> None:
    ring = get("allreduce", "ring")
    with pytest.raises(VerificationError, match="rank 0: the schedule calls itself"):
        verify(Algorithm("allreduce", "gnir", ring.function), [2])


def test_ranks_with_different_grids() -> None:
    def uneven(rank: int, size: int) -> Schedule:
        return replace(get("allreduce", "star")(rank, size), algorithm="uneven", grid=(1 + rank, 1 + rank))

    with pytest.raises(VerificationError, match=r"has a grid of \(2, 2\) where rank 0 has \(1, 1\)"):
        verify(Algorithm("allreduce", "uneven", uneven), [2])


# --- what it says


def test_the_error_names_everything_and_shows_the_schedule() -> None:
    error = rejected(changed(group("broadcast", "binomial", 4, root=1), 1, lambda steps: steps.clear()))
    assert (error.collective, error.algorithm, error.size, error.root) == ("broadcast", "binomial", 4, 1)
    assert str(error).startswith("broadcast binomial, 4 ranks, root 1, rank ")
    assert "   ->    0  recv OUT[0] = <" in str(error)
    assert isinstance(error, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_report_is_a_table() -> None:
    report = verify(get("reduce", "binomial"), range(1, 5))
    lines = str(report).splitlines()
    assert lines[0] == "reduce binomial: verified, in place too, blocks of any sizes"
    names = ["ranks", "roots", "layouts", "IN", "OUT", "rounds", "steps", "messages", "blocks", "scratch"]
    assert lines[1].split() == names
    assert [line.split()[:6] for line in lines[2:]] == [
        ["1", "1", "1", "1", "1", "0"],
        ["2", "2", "1", "1", "1", "1"],
        ["3", "3", "1", "1", "1", "1"],
        ["4", "4", "1", "1", "1", "2"],
    ]
    layouts = verify(get("reduce", "hierarchical_binomial"), [4]).lines[0].layouts
    assert layouts == len(sample_layouts(4)) > 3


def test_every_root_is_tried_in_small_groups() -> None:
    lines = verify(get("gather", "binomial"), [8, 9]).lines
    assert [line.roots for line in lines] == [8, 4]
    assert verify(get("gather", "binomial"), [8, 9], roots=[3, 8]).lines[0].roots == 1


def test_contracts_are_values() -> None:
    assert isinstance(get("gather", "linear").contract, Collective)
