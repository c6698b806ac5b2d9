"""Long sequences of all collectives, roots, sizes and paces changing: whoever is ahead spoils nothing of the others'.

A rank that only sends is done before those who receive have begun, and goes on with another root or collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from tests.collectives.groups import ranks
from tests.depth import LONG

OPERATIONS = 120
COUNTS = (1, 13, 200, 1_100, 9_000, 20_000)  # of float64 for each rank: in a line, beside it, and longer
MOST_PENDING = 6

Check = Callable[[Any], bool]
Empty = Callable[..., Any]  # in memory that ranks of a host share, or elsewhere


@pytest.mark.parametrize("seed", range(3 if LONG else 1))
@pytest.mark.parametrize("size", [2, 3, 4, 6])
@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_whoever_is_ahead_spoils_nothing(transport: str, size: int, seed: int) -> None:
    def body(comm: Communicator) -> list[str]:
        return _wrong([comm], Random(seed), Random(100 * seed + comm.rank))

    assert ranks(size, body, transport=transport) == [[]] * size


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_nor_do_other_communicators_of_the_same_ranks(transport: str) -> None:
    def body(comm: Communicator) -> list[str]:
        # Ranks of one half go another way than those of the other, and meet now and then.
        half = comm.split(comm.rank % 2)
        assert half is not None
        with comm.dup() as twin, half:
            pace = Random(comm.rank)
            found = []
            for turn in range(2):
                found += _wrong([half], Random(10 * turn + comm.rank % 2), pace)
                found += _wrong([comm, twin], Random(turn), pace)
            return found

    assert ranks(5, body, transport=transport) == [[]] * 5


def _wrong(comms: list[Communicator], plan: Random, pace: Random) -> list[str]:
    """What came out wrong of a sequence on these communicators; `plan` is the same on all ranks, `pace` is not."""
    pending: list[tuple[str, Any, Check]] = []
    wrong = []

    def look(name: str, result: Any, check: Check) -> None:
        if not check(result):
            wrong.append(name)

    for number in range(OPERATIONS):
        comm = plan.choice(comms)
        collective = plan.choice(sorted(_CASES))
        root, count = plan.randrange(comm.size), plan.choice(COUNTS)
        in_background = plan.random() < 0.3
        if pace.random() < 0.15:
            time.sleep(pace.random() * 0.004)
        x = comm.empty if pace.random() < 0.4 else np.empty
        arguments, check = _CASES[collective](comm, root, count, number, x)
        name = f"{number}: {collective} of {count}, root {root}"
        if in_background:
            pending.append((name, getattr(comm, f"{collective}_async")(*arguments), check))
        else:
            look(name, getattr(comm, collective)(*arguments), check)
        while len(pending) > MOST_PENDING or (pending and pace.random() < 0.2):
            name, work, check = pending.pop(pace.randrange(len(pending)))
            look(name, work.result(), check)
    for name, work, check in pending:
        look(name, work.result(), check)
    return wrong


def _values(rank: int, number: int, count: int) -> Any:
    return np.arange(count, dtype=np.float64) % 7 + 10 * rank + number


def _in(empty: Empty, values: Any) -> Any:
    x = empty(values.shape, values.dtype)
    x[...] = values
    return x


def _same(expected: Any) -> Check:
    return lambda found: found is not None and np.array_equal(found, expected)


def _on_root(comm: Communicator, root: int, expected: Any) -> Check:
    return _same(expected) if comm.rank == root else lambda found: found is None


def _all(comm: Communicator, number: int, count: int) -> Any:
    return np.stack([_values(rank, number, count) for rank in range(comm.size)])


def _allreduce(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    return (_in(empty, _values(comm.rank, number, count)),), _same(_all(comm, number, count).sum(0))


def _reduce(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    return (_in(empty, _values(comm.rank, number, count)), "max", root), _on_root(
        comm, root, _all(comm, number, count).max(0)
    )


def _broadcast(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    x = _in(empty, _values(comm.rank, number, count))
    return (x, root), _same(_values(root, number, count))


def _allgather(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    return (_in(empty, _values(comm.rank, number, count)),), _same(_all(comm, number, count))


def _gather(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    return (_in(empty, _values(comm.rank, number, count)), root), _on_root(comm, root, _all(comm, number, count))


def _scatter(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    everyones = _all(comm, number, count)
    return (_in(empty, everyones) if comm.rank == root else None, root), _same(everyones[comm.rank])


def _reduce_scatter(
    comm: Communicator, root: int, count: int, number: int, empty: Empty
) -> tuple[tuple[Any, ...], Check]:
    n = count * comm.size
    whole = _all(comm, number, n).sum(0)
    return (_in(empty, _values(comm.rank, number, n)),), _same(whole[comm.rank * count : (comm.rank + 1) * count])


def _scan(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    up_to = _all(comm, number, count)[: comm.rank + 1].sum(0)
    return (_in(empty, _values(comm.rank, number, count)),), _same(up_to)


def _exscan(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    before = _all(comm, number, count)[: comm.rank].sum(0)
    return (_in(empty, _values(comm.rank, number, count)),), _same(before)


def _alltoall(comm: Communicator, root: int, count: int, number: int, empty: Empty) -> tuple[tuple[Any, ...], Check]:
    n = count * comm.size
    sent = _all(comm, number, n).reshape(comm.size, comm.size, count)
    return (_in(empty, sent[comm.rank]),), _same(sent[:, comm.rank])


_CASES = {
    "allreduce": _allreduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "scan": _scan,
    "exscan": _exscan,
    "alltoall": _alltoall,
}
