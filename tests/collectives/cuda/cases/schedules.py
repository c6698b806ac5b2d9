"""Schedules of this library, and of users, on arrays in CUDA memory: messages by NCCL, reductions by kernels."""

from __future__ import annotations

import os
import time
from typing import Any

import ml_dtypes
import numpy as np

import collectives
from collectives import OpTimeout
from collectives.algorithms import registry
from collectives.calls.scheduled import COLLECTIVES
from collectives.schedule.form import Builder, Schedule
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Gate, Stream, cupy

LONG = 30_000  # elements, so that no message waits in a buffer until its receiver comes


@registry.algorithm("allreduce", in_place=True)
def there_and_back(rank: int, size: int) -> Schedule:
    """A user's own: the sum goes from rank to rank, and its copies come back the same way."""
    b = Builder("allreduce", "there_and_back", rank, size, (1, 1))
    if rank == 0:
        b.send(1, b.inp())
        b.recv(1, b.out())
        return b.build()
    last = rank == size - 1
    b.reduce(b.out(), rank - 1, b.inp(), final=last)
    if not last:
        b.send(rank + 1, b.out())
        b.recv(rank + 1, b.out())
    b.send(rank - 1, b.out())
    return b.build()


def _numbers(count: int, dtype: Any) -> Any:
    return (np.random.default_rng(RANK).random(count) * 9 - 4).astype(dtype)


def _run(comm: collectives.Communicator, name: str, x: Any, algorithm: str) -> Any:
    call = getattr(comm, name)
    if name == "scatter":
        return comm.scatter(x if RANK == SIZE - 1 else None, root=SIZE - 1, algorithm=algorithm)
    rooted = name in ("reduce", "broadcast", "gather")
    return call(x, root=SIZE - 1, algorithm=algorithm) if rooted else call(x, algorithm=algorithm)


def _last(comm: collectives.Communicator) -> tuple[str, str | None]:
    one = comm.dump()["operations"][-1]
    return one["engine"], one["algorithm"]


@case
def every_algorithm() -> None:
    """Every algorithm of every collective gives what it gives in host memory, where sums may have another order."""
    with start() as comm:
        run = 0
        for name in COLLECTIVES:
            for algorithm in registry.algorithms(name, SIZE):
                for count in (LONG * SIZE, SIZE * 3):
                    numbers = np.round(_numbers(count, np.float32))
                    if name == "scatter":
                        numbers = numbers.reshape(SIZE, -1)
                    x = cupy.asarray(numbers)
                    expected = _run(comm, name, numbers.copy(), algorithm.name)
                    result = _run(comm, name, x, algorithm.name)
                    assert _last(comm) == ("nccl", algorithm.name)
                    assert (result is None) == (expected is None), algorithm
                    if result is not None:
                        np.testing.assert_array_equal(result.get(), expected, err_msg=str(algorithm))
                    if name != "broadcast":
                        np.testing.assert_array_equal(x.get(), numbers)
                    run += 1
        assert run > 40


@case
def uneven_algorithms() -> None:
    """Calls whose parts have different lengths, one of them 0, by every algorithm that works with such parts."""
    rows = [700 * r for r in range(SIZE)]
    mine = np.round(_numbers(3 * rows[RANK], np.float32)).reshape(-1, 3)
    whole = np.round(_numbers(3 * sum(rows), np.float32)).reshape(-1, 3)
    root = SIZE - 1
    leaving = [RANK + 2 * r for r in range(SIZE)]
    rest = np.round(_numbers(sum(leaving), np.float64))
    with start() as comm:
        calls: dict[str, Any] = {
            "allgather": lambda copy, name: comm.allgatherv(copy(mine), algorithm=name),
            "gather": lambda copy, name: comm.gatherv(copy(mine), root=root, algorithm=name),
            "reduce_scatter": lambda copy, name: comm.reduce_scatterv(copy(whole), rows, algorithm=name),
            "alltoall": lambda copy, name: comm.alltoallv(copy(rest), leaving, algorithm=name),
            "scatter": lambda copy, name: comm.scatterv(
                copy(whole) if root == RANK else None, rows if root == RANK else None, root=root, algorithm=name
            ),
        }
        run = 0
        for collective, call in calls.items():
            for algorithm in registry.algorithms(collective, SIZE, uneven=True):
                expected, result = call(np.copy, algorithm.name), call(cupy.asarray, algorithm.name)
                assert _last(comm) == ("nccl", algorithm.name), (collective, algorithm.name, _last(comm))
                assert (result is None) == (expected is None), algorithm
                if result is not None:
                    np.testing.assert_array_equal(result.get(), expected, err_msg=f"{collective} {algorithm}")
                run += 1
        assert run >= len(calls)
        x = cupy.asarray(np.arange(100.0) + RANK)
        assert comm.scan(x, out=x, algorithm="chain") is x
        np.testing.assert_array_equal(x.get(), (RANK + 1) * np.arange(100.0) + sum(range(RANK + 1)))
        assert _last(comm) == ("nccl", "chain")
        np.testing.assert_array_equal(comm.scan(cupy.asarray(np.arange(1, 5)), "land", algorithm="chain").get(), 1)
        assert _last(comm)[0] != "nccl"
        with raises(ValueError, "avg"):
            comm.scan(x, "avg", algorithm="chain")
        with raises(ValueError, "stream is given", "schedules of exscan"):
            comm.exscan(x, algorithm="chain", stream=Stream())


@case
def every_dtype_and_op() -> None:
    """Results have the bits of host memory, in algorithms whose order of operands is the same there."""
    with start() as comm:
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float64, np.int16, np.uint8, np.int64, np.complex64, np.bool_):
            ops = ["sum", "prod"]
            kind = np.dtype(dtype).kind
            ops += ["min", "max"] if kind != "c" else []
            ops += ["band", "bxor"] if kind in "iub" else []
            ops += ["avg"] if kind != "b" else []
            numbers = _numbers(1001, dtype)
            for op in ops:
                for algorithm in ("ring", "recursive_doubling", "there_and_back"):
                    expected = comm.allreduce(numbers, op, algorithm=algorithm)
                    result = comm.allreduce(cupy.asarray(numbers), op, algorithm=algorithm).get()
                    assert _last(comm) == ("nccl", algorithm)
                    np.testing.assert_array_equal(result, expected, err_msg=f"{dtype} {op} {algorithm}")
        narrow = cupy.asarray(np.ones(SIZE, ml_dtypes.float8_e5m2))
        assert comm.allgather(narrow, algorithm="ring").get().shape == (SIZE, SIZE)
        with raises(TypeError, "float8_e5m2", "no kernel"):
            comm.allreduce(narrow, algorithm="ring")


@case
def in_stream_order() -> None:
    """In place, asynchronous, behind held streams, and with ranks that differ in whether they reduce in place."""
    with start() as comm:
        x = cupy.asarray(np.full(LONG, RANK + 1.0))
        total = SIZE * (SIZE + 1) / 2
        assert comm.allreduce(x, out=x, algorithm="ring") is x
        np.testing.assert_array_equal(x.get(), np.full(LONG, total))
        y = cupy.asarray(np.full(LONG, RANK + 1.0))
        out = y if RANK == 0 else None
        np.testing.assert_array_equal(comm.allreduce(y, out=out, algorithm="ring").get(), np.full(LONG, total))
        stream, gate = Stream(), Gate()
        z = cupy.asarray(np.full(LONG, RANK + 1.0))
        with stream:
            gate.hold(stream)
            works = [comm.allreduce_async(z, algorithm="there_and_back") for _ in range(5)]
            assert not works[0].done()
            gate.open()
            for work in works:
                np.testing.assert_array_equal(work.wait().get(), np.full(LONG, total))
            plan = comm.allreduce_plan(z, out=z, algorithm="ring")
            for again in range(1, 4):
                plan()
                comm.synchronize(stream)
                np.testing.assert_array_equal(z.get(), np.full(LONG, total * SIZE ** (again - 1)))
        empty = cupy.asarray(np.empty(0, np.float32))
        assert comm.allreduce(empty, algorithm="ring").shape == (0,)
        with raises(ValueError, "no algorithm 'rung'", "ring"):
            comm.allreduce(x, algorithm="rung")
        with raises(TypeError, "avg"):
            comm.allreduce(cupy.asarray(np.ones(2, bool)), "avg", algorithm="ring")


@case
def scheduled_in_a_graph() -> None:
    with start() as comm:
        comm.prepare("send", "recv")
        stream = Stream()
        x, y = cupy.asarray(np.zeros(LONG, np.float32)), cupy.asarray(np.zeros(LONG, np.float32))
        with stream:
            stream.begin_capture()
            assert comm.allreduce(x, out=y, algorithm="ring") is y
            graph = stream.end_capture()
            for replay in range(20):
                x.set(np.full(LONG, replay + RANK, np.float32))
                if replay == 5 and RANK == 1:
                    time.sleep(0.2)
                graph.launch(stream)
                comm.synchronize(stream)
                np.testing.assert_array_equal(y.get(), np.full(LONG, SIZE * replay + SIZE * (SIZE - 1) / 2))
                np.testing.assert_array_equal(comm.allreduce(x, algorithm="two_shot").get(), y.get())


@case
def schedules_explained() -> None:
    with start() as comm:
        text = comm.explain("allreduce", 1 << 20, algorithm="there_and_back")
        assert "algorithm   there_and_back: asked for" in text, text
        rounds = 2 * (SIZE - 1)
        on_cuda = f"on CUDA     there_and_back: NCCL carries its messages in {rounds} rounds, and kernels reduce"
        assert on_cuda in text, text
        comm.allreduce(cupy.asarray(np.ones(3)), algorithm="there_and_back")
        assert f", on device {RANK}" in comm.explain("allreduce", 1 << 20, algorithm="there_and_back")
        assert "schedules of exscan do not run" in comm.explain("exscan", 64, algorithm="chain")
        with raises(ValueError, "no algorithm 'rung'"):
            comm.explain("allreduce", 64, algorithm="rung")


@case
def chosen_by_a_row() -> None:
    """A row of the table may name a schedule for devices, a user's own, too; other calls go on to the next row."""
    with start(table=os.environ["TABLE"]) as comm:
        x = cupy.asarray(np.ones(1000, np.float32))
        text = comm.explain("allreduce", 4000)
        assert "on CUDA     there_and_back: as asked" in text and "memory=cuda" in text, text
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(1000, float(SIZE)))
        assert _last(comm) == ("nccl", "there_and_back")
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="nccl").get(), np.full(1000, float(SIZE)))
        np.testing.assert_array_equal(comm.allgather(x).get(), np.ones((SIZE, 1000)))
        assert _last(comm) == ("nccl", None)
        large = cupy.asarray(np.ones(100_000, np.float32))
        np.testing.assert_array_equal(comm.allreduce(large).get(), np.full(100_000, float(SIZE)))
        assert _last(comm) == ("nccl", None)


@case
def without_a_compiler() -> None:
    """Where a rank has no NVRTC, schedules that only move arrays run on devices, and reductions in host memory."""
    with start() as comm:
        x = cupy.asarray(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="ring").get(), np.full(4, float(SIZE)))
        assert _last(comm)[0] != "nccl"
        assert os.environ["WHY"] in comm.explain("allreduce", 64, algorithm="ring")
        np.testing.assert_array_equal(comm.allgather(x, algorithm="ring").get(), np.ones((SIZE, 4)))
        assert _last(comm) == ("nccl", "ring")
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, float(SIZE)))
        assert _last(comm)[0] == "nccl"


@case
def schedule_of_a_late_rank() -> None:
    comm = start(timeout=1.5)
    x = cupy.asarray(np.ones(LONG))
    comm.allreduce(x, algorithm="ring")
    comm.synchronize()
    if RANK == 1:
        time.sleep(4)
        with raises(OpTimeout, "rank 1", "not begun"):
            comm.allreduce(x, algorithm="ring")
    else:
        work = comm.allreduce_async(x, algorithm="ring")
        with raises(OpTimeout, "rank 1", "not begun", f"allreduce(sum, float64, {LONG} elements)"):
            work.wait()
        cupy.cuda.get_current_stream().synchronize()
        with raises(OpTimeout, "rank 1"):
            comm.allreduce(x, algorithm="ring")
    comm.close()
