"""What collectives compute, on arrays of all kinds and sizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.collectives.conformance.reference import reduced
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, engines, start
from tests.collectives.cuda.runs_on import ON_STAND_IN, RANK, SIZE, cupy


@case
def results() -> None:
    """All collectives give what NumPy computes, where the arrays are."""
    with start(transport="nccl") as comm:
        # CuPy itself has no bfloat16 in all its versions.
        sixteen = [ml_dtypes.bfloat16] if ON_STAND_IN else [np.float16]
        for dtype in (np.float32, np.float64, np.int8, np.uint32, np.int64, np.complex64, *sixteen):
            inputs = [(np.arange(12) % 5 + r).astype(dtype) for r in range(SIZE)]
            x = cupy.asarray(inputs[RANK])
            total = np.sum(inputs, axis=0, dtype=dtype)
            np.testing.assert_array_equal(comm.allreduce(x).get(), total)
            np.testing.assert_array_equal(comm.allgather(x).get(), np.stack(inputs))
            half = np.split(total, SIZE)[RANK]
            np.testing.assert_array_equal(comm.reduce_scatter(x).get(), half)
            on_root = comm.reduce(x, root=1)
            assert (on_root is None) == (RANK != 1)
            if on_root is not None:
                np.testing.assert_array_equal(on_root.get(), total)
            gathered = comm.gather(x, root=0)
            assert (gathered is None) == (RANK != 0)
            if gathered is not None:
                np.testing.assert_array_equal(gathered.get(), np.stack(inputs))
            parts = [np.split(one, SIZE)[RANK] for one in inputs]
            np.testing.assert_array_equal(comm.alltoall(x).get(), np.concatenate(parts))
            np.testing.assert_array_equal(x.get(), inputs[RANK])
            assert comm.broadcast(x, root=1) is x
            np.testing.assert_array_equal(x.get(), inputs[1])
        ours = {o["engine"] for o in comm.dump()["operations"] if o["collective"] == "alltoall"}
        assert ours == {"nccl"}, ours


@case
def ops() -> None:
    with start() as comm:
        x = cupy.asarray(np.array([1.0, 2.0, 3.0]) + RANK)
        for op, value in (("sum", [3, 5, 7]), ("prod", [2, 6, 12]), ("min", [1, 2, 3]), ("max", [2, 3, 4])):
            np.testing.assert_array_equal(comm.allreduce(x, op).get(), value)
        np.testing.assert_array_equal(comm.allreduce(x, "avg").get(), [1.5, 2.5, 3.5])
        flags = cupy.asarray(np.array([RANK == 0, True, False]))
        np.testing.assert_array_equal(comm.allreduce(flags, "lor").get(), [True, True, False])
        np.testing.assert_array_equal(comm.allreduce(flags, "land").get(), [False, True, False])
        np.testing.assert_array_equal(comm.allreduce(flags).get(), [True, True, False])
        for dtype in (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64):
            info, random = np.iinfo(dtype), np.random.default_rng(3)
            inputs = [random.integers(info.min, info.max, 10 * SIZE, dtype, endpoint=True) for _ in range(SIZE)]
            whole, average = cupy.asarray(inputs[RANK]), reduced(inputs, "avg")
            np.testing.assert_array_equal(comm.reduce_scatter(whole, "avg").get(), np.split(average, SIZE)[RANK])
            np.testing.assert_array_equal(comm.allreduce_many([whole], "avg")[0].get(), average)
            assert comm.allreduce(whole, "avg", out=whole) is whole
            np.testing.assert_array_equal(whole.get(), average)
        assert set(engines(comm)[-6:]) == {"nccl"}
        # What NCCL lacks runs on a copy in host memory.
        short = cupy.asarray(np.array([1, 2], np.int16))
        np.testing.assert_array_equal(comm.allreduce(short).get(), [2, 4])
        np.testing.assert_array_equal(
            comm.allreduce(cupy.asarray(np.array([-7, 3 * RANK], np.int16)), "avg").get(), [-7, 1]
        )
        bits = cupy.asarray(np.array([1 << RANK], np.int32))
        np.testing.assert_array_equal(comm.allreduce(bits, "bor").get(), [3])
        np.testing.assert_array_equal(comm.scan(x).get(), np.array([1.0, 2.0, 3.0]) * (RANK + 1) + RANK)
        assert "nccl" not in engines(comm)[-4:]
        with raises(TypeError, "avg"):
            comm.allreduce(flags, "avg")
        with raises(ValueError, "unknown op", "sum"):
            comm.allreduce(bits, "sun")


@case
def sizes() -> None:
    """Empty arrays, large ones, in place, and many at once."""
    with start() as comm:
        empty = cupy.asarray(np.empty(0, np.float32))
        assert comm.allreduce(empty).shape == (0,)
        large = cupy.asarray(np.full(300_000, RANK + 1.0, np.float32))
        assert comm.allreduce(large, out=large) is large
        np.testing.assert_array_equal(large.get(), np.full(300_000, 3.0))
        works = []
        for i in range(1500):
            works.append(comm.allreduce_async(cupy.asarray(np.full(4, i, np.float32))))
        for i, work in enumerate(works):
            np.testing.assert_array_equal(work.wait().get(), np.full(4, 2.0 * i))
        states = {o["state"] for o in comm.dump()["operations"]}
        assert states == {"done"}, states


@case
def alone() -> None:
    """One rank."""
    with start(transport="nccl") as comm:
        x = cupy.asarray(np.arange(3.0))
        np.testing.assert_array_equal(comm.allreduce(x, "avg").get(), [0, 1, 2])
        with raises(TypeError, "host memory", 'transport="auto"'):
            comm.allreduce(np.ones(3))
