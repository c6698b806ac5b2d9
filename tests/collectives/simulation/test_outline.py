"""Schedules as arrays: the same steps, peers and dependencies as the lists of steps, and sequences that get numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import algorithms
from collectives.schedule import OUT, Chunk, Copy, Recv, Reduce, Schedule, Send
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.dependencies import dependencies
from collectives.schedule.layout import even
from collectives.simulation.outline import Outline
from collectives.simulation.sequences import folded, numbered, turns
from collectives.simulation.steps import COPY, RECV, REDUCE, SEND
from collectives.simulation.waits import BEHIND

EVERY = [a for name in COLLECTIVES for a in algorithms(name) if a.function.__module__.startswith("collectives.")]
BLOCKS = 4
BUFFERS = 4  # IN, OUT and two of temporary memory

Form = tuple[int, int, int, int]


def looked_at(schedule: Schedule) -> tuple[list[Form], list[int]]:
    """What `Outline` holds, step by step, if no two steps are one message."""
    forms: list[Form] = []
    peers: list[int] = []
    size, rank = schedule.size, schedule.rank
    for step in schedule.steps:
        match step:
            case Send(to, chunk):
                forms.append((SEND, len(to), chunk.count, 0))
                peers += to
            case Recv(peer, chunk):
                forms.append((RECV, 1, chunk.count, 1))
                peers.append(peer)
            case Reduce(dst, operands):
                forms.append((REDUCE, len(step.peers), dst.count, len(operands)))
                peers += sorted(step.peers, key=lambda peer: (peer - rank) % size)
            case Copy(dst, src):
                forms.append((COPY, 0, dst.count if dst != src else 0, 1))
    return forms, [(peer - schedule.root) % size for peer in peers]


def waited_for(schedule: Schedule, blocks: list[int]) -> list[tuple[int, int, float]]:
    """The waits of `schedule` by `dependencies`: task, other task and progress, if no two steps are one message."""
    found: dict[tuple[int, int], float] = {}
    for step, earlier in enumerate(dependencies(schedule)):
        for other, _, there, here in earlier:
            ahead = (here - there) / max(blocks[other], 1)
            progress = BEHIND if ahead < 0 else min(ahead, 1.0)
            found[step, other] = max(found.get((step, other), BEHIND), progress)
    return sorted((*pair, progress) for pair, progress in found.items())


def check(schedule: Schedule) -> None:
    outline = Outline(schedule, whole=False)
    forms, peers = looked_at(schedule)
    assert outline.forms.tolist() == [list(form) for form in forms]
    assert outline.flat_peers.tolist() == peers
    waits = outline.waits
    found = list(zip(waits.task.tolist(), waits.other.tolist(), waits.progress.tolist(), strict=True))
    assert found == waited_for(schedule, [form[2] for form in forms])


@pytest.mark.parametrize("known", EVERY, ids=str)
def test_an_outline_says_what_the_steps_say(known: Algorithm) -> None:
    for size in filter(known.sizes, (1, 2, 3, 8, 13)):
        for rank in {0, 1 % size, size - 1}:
            for root in {0, size - 1} if COLLECTIVES[known.collective].rooted else {0}:
                check(known(rank, size, root, even(size, 3) if known.hosts else None))


chunks = st.integers(0, BLOCKS).flatmap(
    lambda first: st.builds(Chunk, st.integers(0, BUFFERS - 1), st.just(first), st.integers(0, BLOCKS - first))
)
ranks = st.integers(1, 3)
steps = st.one_of(
    st.builds(Send, st.lists(ranks, min_size=1, max_size=3, unique=True).map(tuple), chunks),
    st.builds(Recv, ranks, chunks),
    st.builds(Copy, chunks, chunks),
    st.builds(Reduce, chunks, st.lists(st.one_of(ranks, chunks), min_size=2, max_size=4).map(tuple)),
)


@given(st.lists(steps, max_size=12))
def test_an_outline_of_steps_in_any_order(listed: list[Send | Recv | Copy | Reduce]) -> None:
    slots = (((OUT, 0), (OUT, 1), (OUT, 2), (OUT, 3)),) * 2
    check(Schedule("allreduce", "made_up", 0, 4, 0, (BLOCKS, BLOCKS), slots, tuple(listed)))


def test_a_message_that_goes_round_is_one_task() -> None:
    """Blocks 3, 0 and 1 are sent as one message, though a schedule needs two sends for them."""
    slots = (((OUT, 0),),)
    block = Chunk(OUT, 0, 1)
    listed = (Send((1,), Chunk(OUT, 3, 1)), Send((1,), Chunk(OUT, 0, 2)), Send((2,), block), Recv(3, block))
    schedule = Schedule("allreduce", "made_up", 0, 4, 0, (BLOCKS, BLOCKS), slots, listed)
    whole, parts = Outline(schedule), Outline(schedule, whole=False)
    assert whole.forms.tolist() == [[SEND, 1, 3, 0], [SEND, 1, 1, 0], [RECV, 1, 1, 1]]
    assert whole.flat_peers.tolist() == [1, 2, 3]
    assert (whole.waits.task.tolist(), whole.waits.other.tolist()) == ([2, 2], [0, 1])
    assert len(parts.forms) == 4 and parts.waits.other.tolist() == [1, 2]


@given(st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12))
def test_equal_sequences_have_equal_numbers(sequences: list[list[int]]) -> None:
    items = np.array([item for sequence in sequences for item in sequence], np.int64)
    found = folded(items, np.array([len(sequence) for sequence in sequences], np.int64)).tolist()
    for one, number in zip(sequences, found, strict=True):
        assert (number == 0) == (not one)
        for other, again in zip(sequences, found, strict=True):
            assert (number == again) == (one == other)


@given(st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([-1.0, 0.0, 0.5]), st.integers(0, 1 << 61)), max_size=9))
def test_equal_rows_have_equal_numbers(rows: list[tuple[int, float, int]]) -> None:
    columns = [np.array([row[k] for row in rows], np.float64 if k == 1 else np.int64) for k in range(3)]
    found = numbered(*columns).tolist()
    assert [found[rows.index(row)] for row in rows] == found
    assert sorted(set(found)) == list(range(len(set(rows))))


def test_turns() -> None:
    owner, place = turns(np.array([2, 0, 3]))
    assert (owner.tolist(), place.tolist()) == ([0, 0, 2, 2, 2], [0, 1, 0, 1, 2])
