"""The rounds in which messages move where nothing buffers them."""

from __future__ import annotations

from collections import defaultdict

import pytest

from collectives.algorithms import registry
from collectives.schedule.algorithm import Algorithm
from collectives.schedule.check import peers_of
from collectives.schedule.conditions import COLLECTIVES
from collectives.schedule.dependencies import dependencies
from collectives.schedule.form import Send
from collectives.schedule.layout import even
from collectives.schedule.rounds import rounds_of

ALL = [algorithm for name in COLLECTIVES for algorithm in registry.algorithms(name)]


@pytest.mark.parametrize("algorithm", ALL, ids=str)
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_both_ranks_of_a_message_have_it_in_the_same_round(algorithm: Algorithm, size: int) -> None:
    if not algorithm.sizes(size):
        return
    layout = even(size, 2) if size % 2 == 0 else None
    root = size - 1 if algorithm.contract.rooted else 0
    sent, received = defaultdict[tuple[int, int], list[int]](list), defaultdict[tuple[int, int], list[int]](list)
    for rank in range(size):
        schedule = algorithm(rank, size, root, layout)
        steps = rounds_of(algorithm, rank, size, root, layout).steps
        assert len(steps) == len(schedule.steps)
        for number, waits in enumerate(dependencies(schedule)):
            step, rounds = schedule.steps[number], steps[number]
            moves = bool(peers_of(step))
            for wait in waits:  # what a message needs was complete in an earlier round
                assert max(steps[wait.step]) < min(rounds) + (not moves)
            for at, peer in enumerate(peers_of(step)):
                if isinstance(step, Send):
                    sent[rank, peer].append(rounds[at])
                else:
                    received[peer, rank].append(rounds[0])
    assert sent == received
    for numbers in sent.values():
        assert sorted(numbers) == numbers
    assert sum(map(len, sent.values())) > 0
