"""What a rank sends to others and keeps as well, which it reads once for both, in pieces as they are staged."""

from __future__ import annotations

import time

import numpy as np
import pytest

from collectives import Communicator
from tests.collectives.groups import ranks

LATE = 0.003  # seconds: so long whoever sends finds no room, and copies its own part ahead
GUARD = 64
VALUES = np.random.default_rng(1).integers(0, 256, 7 << 20, dtype=np.uint8)


@pytest.fixture(autouse=True)
def nothing_is_read_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_PULL", "0")


@pytest.mark.parametrize("late", [None, 0, 1])
@pytest.mark.parametrize(("size", "segment"), [(2, None), (2, 1000), (2, 65536), (3, None), (5, 1000)])
def test_every_rank_has_its_own_part_and_the_others(size: int, segment: int | None, late: int | None) -> None:
    """Parts that go in a line, in a piece, in several, in more than all staging memory holds, and around the caches."""

    def body(comm: Communicator) -> None:
        for nbytes in (40, 4096, 100_001, 1 << 20, (13 << 20) // size + 3):
            parts = [VALUES[rank : rank + nbytes] for rank in range(size)]
            x = parts[comm.rank].copy()
            memory = np.full(size * nbytes + 2 * GUARD, 0xA5, np.uint8)
            out = memory[GUARD:-GUARD].reshape(size, nbytes)
            comm.barrier()
            if comm.rank == late:
                time.sleep(LATE)
            comm.allgather(x, out=out, algorithm="direct")
            np.testing.assert_array_equal(out, np.stack(parts))
            np.testing.assert_array_equal(x, parts[comm.rank])
            assert (memory[:GUARD] == 0xA5).all()
            assert (memory[-GUARD:] == 0xA5).all()

    options = {} if segment is None else {"segment": segment}
    ranks(size, body, transport="shm", **options)
