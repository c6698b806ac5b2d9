"""Large results in memory that all ranks share, which go to all of them at once, around the caches."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from collectives import Communicator
from tests.collectives.groups import ranks
from tests.depth import LONG

NBYTES = 13 << 20  # of a result; from 12 MiB on they go around the caches


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        *(("float32", "sum"), ("float16", "avg"), ("bfloat16", "sum"), ("complex64", "avg")),
        *((("float32", "avg"), ("float16", "sum"), ("bfloat16", "avg"), ("complex64", "sum")) if LONG else ()),
        ("float32", "max"),
        ("int32", "sum"),
    ],
)
def test_every_rank_gets_all_of_a_large_result(size: int, dtype: str, op: str) -> None:
    """Where it begins behind a cache line differs from rank to rank, or it does not."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    n = NBYTES // kind.itemsize + 5

    def body(comm: Communicator) -> None:
        memory = comm.empty(2 * n + 64, dtype)
        # Small whole numbers, whose sums are exact in every dtype.
        values = [((np.arange(n) + 3 * rank) % 7).astype(kind) for rank in range(size)]
        total = (
            np.max(values, axis=0) if op == "max" else np.sum(values, axis=0, dtype=np.result_type(kind, np.float64))
        )
        expected = (total / size if op == "avg" else total).astype(kind)
        for start in (0, 1, comm.rank):
            x, out = memory[start : start + n], memory[n + 32 + start : 2 * n + 32 + start]
            x[:] = values[comm.rank]
            out[:] = 0
            result = comm.allreduce(x, op=op, algorithm="two_shot", out=out)
            assert result is out
            np.testing.assert_array_equal(out, expected)

    ranks(size, body, transport="shm")
