"""Results somewhat larger than the caches, which are stored through and around them by turns, are right each time."""

from __future__ import annotations

import numpy as np
import pytest

from collectives import Communicator
from tests.collectives.groups import ranks

ELEMENTS = 3_200_000  # 12.2 MiB of output, which never counts as fitting
CALLS = 72  # more than two trials


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "allreduce in place", "alltoall"])
def test_every_call_of_a_trial_is_right(collective: str) -> None:
    def body(comm: Communicator) -> None:
        steps = np.arange(ELEMENTS, dtype=np.float32) % 1000
        mine = steps[: ELEMENTS // 2] if collective == "allgather" else steps
        x = np.empty_like(mine)
        out = x if collective == "allreduce in place" else np.empty(ELEMENTS, np.float32)
        for call in range(CALLS):
            out[::1000] = -1
            np.add(mine, comm.rank + call, out=x)
            if collective == "allgather":
                comm.allgather(x, out=out.reshape(2, -1))
                expected = np.concatenate([mine + call, mine + (1 + call)])
            elif collective == "alltoall":
                comm.alltoall(x, out=out)
                half = mine.reshape(2, -1)[comm.rank]
                expected = np.concatenate([half + call, half + (1 + call)])
            else:
                comm.allreduce(x, out=out)
                expected = 2 * mine + (1 + 2 * call)
            assert np.array_equal(out, expected), f"call {call}"

    ranks(2, body, transport="shm")
