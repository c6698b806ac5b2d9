"""What calls give: all dtypes and ops, all collectives, and calls in a `group()` block."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np

from collectives.arrays.dtypes import dtype_names
from collectives.native import _engine
from tests.collectives.cuda.led.common import array, case, last_engine, start
from tests.collectives.cuda.led.numbers import expected, inputs_of
from tests.collectives.cuda.runs_on import ON_STAND_IN, RANK, SIZE, driver


@case
def results() -> None:
    """All dtypes and ops give the bits that the CPU's kernels give, in the order of ranks; odd sizes, too."""
    every = tuple(dtype_names().values())
    names = ("float16", "float32", "int8", "bool", "complex64") if "SHORT" in os.environ else every
    dtypes = [np.dtype(name) for name in names if name != "bfloat16"]
    if ON_STAND_IN:
        dtypes.append(np.dtype(ml_dtypes.bfloat16))
    with start(transport="leader") as comm:
        for dtype in dtypes:
            for op, code in _engine.OPS.items():
                if not _engine.supports(_engine.DTYPES[dtype.name], code):
                    continue
                inputs = inputs_of(dtype, 67)
                if dtype.kind == "f":
                    inputs[0][:3] = np.nan, np.inf, -0.0
                    inputs[-1][:3] = 1.0, -np.inf, 0.0
                found = comm.allreduce(array(inputs[RANK]), op).get()
                assert found.tobytes() == expected(inputs, op).tobytes(), (dtype, op, found, expected(inputs, op))
                assert last_engine(comm) == "leader", (dtype, op)


@case
def collectives_of_all_kinds() -> None:
    """Each collective, out of place and in place, aligned and not, large and empty."""
    with start(transport="leader") as comm:
        for count in (0, 1, 3, 16, 1000, 40_000):
            inputs = inputs_of(np.float32, count * SIZE)
            x = array(inputs[RANK])
            total = expected(inputs, "sum")
            np.testing.assert_array_equal(comm.allreduce(x).get(), total)
            np.testing.assert_array_equal(comm.reduce_scatter(x).get(), np.split(total, SIZE)[RANK])
            np.testing.assert_array_equal(comm.allgather(x).get(), np.stack(inputs))
            parts = [np.split(one, SIZE)[RANK] for one in inputs]
            np.testing.assert_array_equal(comm.alltoall(x).get(), np.concatenate(parts))
            for root in range(SIZE):
                reduced, gathered = comm.reduce(x, "max", root=root), comm.gather(x, root=root)
                assert (reduced is None) == (gathered is None) == (root != RANK)
                if reduced is not None:
                    np.testing.assert_array_equal(reduced.get(), np.max(inputs, axis=0))
                    np.testing.assert_array_equal(gathered.get(), np.stack(inputs))
            np.testing.assert_array_equal(x.get(), inputs[RANK])
            assert comm.allreduce(x, out=x) is x
            np.testing.assert_array_equal(x.get(), total)
            y = array(inputs[RANK])
            comm.broadcast(y, root=SIZE - 1)
            np.testing.assert_array_equal(y.get(), inputs[SIZE - 1])
        ours = {o["engine"] for o in comm.dump()["operations"] if o["collective"] in ("alltoall", "allreduce")}
        assert ours == {"leader"}, ours
        bytes_of_odd_length = array(np.full(13, RANK, np.int8))
        gathered = comm.allgather(bytes_of_odd_length).get()
        np.testing.assert_array_equal(gathered, np.repeat(np.arange(SIZE, dtype=np.int8), 13).reshape(SIZE, 13))


@case
def many() -> None:
    """Lists of arrays of any shape and dtype, longer than a rank may be ahead, alone and in a `group()` block."""
    with start(transport="leader") as comm:
        hosts = [np.full((3, 2), RANK + 1.0, np.float32), np.arange(4), np.zeros(0), np.full(2, RANK + 1j)]
        total = SIZE * (SIZE + 1) / 2
        sums = [np.full((3, 2), total), SIZE * np.arange(4), np.zeros(0), np.full(2, total - SIZE + SIZE * 1j)]
        arrays = [array(host) for host in hosts]
        for results in (comm.allreduce_many(arrays), comm.allreduce_many_async(arrays).wait()):
            for result, expected_sum in zip(results, sums, strict=True):
                np.testing.assert_array_equal(result.get(), expected_sum)
        comm.prepare()
        with comm.group():
            largest = comm.allreduce_many(arrays[:2], "max")
            work = comm.allreduce_many_async(arrays[:2])
        np.testing.assert_array_equal(largest[0].get(), np.full((3, 2), SIZE))
        np.testing.assert_array_equal(work.wait()[0].get(), sums[0])
        assert comm.allreduce_many(arrays, out=arrays) == arrays
        np.testing.assert_array_equal(arrays[3].get(), sums[3])
        long = [array(np.full(5, i + RANK)) for i in range(200)]
        for i, result in enumerate(comm.allreduce_many(long)):
            np.testing.assert_array_equal(result.get(), np.full(5, SIZE * i + total - SIZE))
        assert {one["engine"] for one in comm.dump()["operations"] if one["collective"] == "allreduce"} == {"leader"}


@case
def groups() -> None:
    """Communicators from others have an engine each, and leave no registered memory."""
    with start() as comm:
        x = array(np.full(4, RANK + 1.0))
        comm.allreduce(x)
        comm.synchronize()
        before = driver.registered()
        for _ in range(4):
            with comm.dup() as other:
                np.testing.assert_array_equal(other.allreduce(x).get(), np.full(4, SIZE * (SIZE + 1) / 2))
                assert last_engine(other) == "leader"
        assert driver.registered() == before, (driver.registered(), before)
        pair = comm.split(0, key=-RANK)
        assert pair is not None
        y = array(np.full(2, float(pair.rank)))
        pair.broadcast(y, 0)
        np.testing.assert_array_equal(y.get(), [0.0, 0.0])
        pair.close()
    assert driver.registered() == 0, driver.registered()
    print(f"descriptors: {len(os.listdir('/proc/self/fd'))}")
