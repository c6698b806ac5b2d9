"""Calls that are captured into a graph, and `prepare`."""

from __future__ import annotations

import os
import time

import numpy as np

from collectives import Aborted, PeerLost
from tests.collectives.cuda.by_name import raises, refused
from tests.collectives.cuda.led.common import array, case, last_engine, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Stream

REPLAYS = int(os.environ.get("REPLAYS", "100"))


@case
def graphs() -> None:
    """Captured calls are replayed with other inputs, one rank delayed, beside other calls."""
    with start(transport="leader") as comm:
        x, y, z = (array(np.zeros(500, np.float32)) for _ in range(3))
        stream = Stream()
        with stream:
            comm.allreduce(x, out=y)
            stream.begin_capture()
            comm.allreduce(x, out=y)
            comm.allreduce(y, "max", out=z)
            graph = stream.end_capture()
            for i in range(REPLAYS):
                if RANK == SIZE - 1 and i % 10 == 0:
                    time.sleep(0.003)
                x.set(np.full(500, i + RANK, np.float32))
                graph.launch(stream)
                total = np.full(500, SIZE * i + SIZE * (SIZE - 1) // 2, np.float32)
                np.testing.assert_array_equal(z.get(), total)
                if i % 25 == 0:
                    np.testing.assert_array_equal(comm.allreduce(y).get(), SIZE * total)


@case
def captured_most() -> None:
    """A communicator captures 1 024 calls; a further one is refused before it is issued, and another captures it."""
    with start(transport="leader") as comm, comm.dup() as other:
        comm.prepare()
        other.prepare()
        x, y = array(np.full(4, float(RANK))), array(np.zeros(4))
        stream = Stream()
        with stream:
            stream.begin_capture()
            for _ in range(1024):
                comm.allreduce(x, out=y)
            with refused(ValueError, "captured 1024 calls", "comm.dup()"):
                comm.allreduce(x, out=y)
            other.allreduce(y, "max", out=y)
            graph = stream.end_capture()
            graph.launch(stream)
            comm.synchronize(stream)
            np.testing.assert_array_equal(y.get(), np.full(4, SIZE * (SIZE - 1) / 2))
        np.testing.assert_array_equal(comm.allreduce(y).get(), SIZE * y.get())


@case
def captured_first() -> None:
    """A first call in a captured stream is refused on all ranks, and nothing is lost."""
    with start(transport="leader") as comm:
        x, stream = array(np.ones(4)), Stream()
        if RANK == 1:
            stream.begin_capture()
            with raises(ValueError, "captured"):
                comm.allreduce(x, stream=stream)
            stream.end_capture()
        else:
            with raises(Aborted, "rank 1", "captured"):
                comm.allreduce(x, stream=stream)
        with stream:
            np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, SIZE * 1.0))


@case
def prepared() -> None:
    """After `prepare`, even a first call may be captured, or be in a `group()` block."""
    with start() as comm:
        with raises(ValueError, "comm.prepare()"), comm.group():
            comm.allreduce(array(np.ones(4)))
        comm.prepare()
        with comm.group():
            total = comm.allreduce(array(np.ones(4)))
        np.testing.assert_array_equal(total.get(), np.full(4, SIZE * 1.0))
        x, y, stream = array(np.zeros(500, np.float32)), array(np.zeros(500, np.float32)), Stream()
        with stream:
            stream.begin_capture()
            comm.allreduce(x, out=y)
            graph = stream.end_capture()
            assert last_engine(comm) == "leader"
            for i in range(3):
                x.set(np.full(500, i + RANK, np.float32))
                graph.launch(stream)
                np.testing.assert_array_equal(y.get(), np.full(500, SIZE * i + SIZE * (SIZE - 1) // 2, np.float32))


@case
def compiled() -> None:
    """`prepare` compiles the kernels of its dtype and op, and those that only move."""
    comm = start(timeout=30.0)
    comm.prepare("allreduce", dtype="int32", op="max")
    os.environ["STAND_IN_NO_COMPILATION"] = "1"
    x = array(np.full(4, RANK, np.int32))
    np.testing.assert_array_equal(comm.allreduce(x, "max").get(), np.full(4, SIZE - 1))
    np.testing.assert_array_equal(comm.allgather(x).get()[:, 0], np.arange(SIZE))
    with raises(ValueError, "unknown op 'summ'"):
        comm.prepare(op="summ")
    with raises(Aborted if RANK == 0 else (Aborted, PeerLost), "compile" if RANK == 0 else "rank 0"):
        comm.allreduce(x, "min")
        comm.synchronize()
        comm.barrier()
    comm.close()


@case
def prepared_beside() -> None:
    """What a leader does not run, NCCL is connected for, if ranks that share a device can use NCCL."""
    with start() as comm:
        comm.prepare("allreduce", "scatter", "send", "recv")
        by_nccl = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
        assert (comm.memory()["nccl"] > 0) == by_nccl, comm.memory()
        x = array(np.arange(SIZE * 3.0).reshape(SIZE, 3)) if RANK == 0 else None
        row = comm.scatter(x)
        assert isinstance(row, np.ndarray) == (RANK > 0 and not by_nccl)  # the host path knows no library of the root
        np.testing.assert_array_equal(row if isinstance(row, np.ndarray) else row.get(), np.arange(3.0) + 3 * RANK)
        assert (last_engine(comm) == "nccl") == by_nccl, last_engine(comm)
        comm.allreduce(array(np.ones(3)))
        assert last_engine(comm) == "leader"
        got = array(np.zeros(3))
        comm.sendrecv(array(np.full(3, float(RANK))), (RANK + 1) % SIZE, got, (RANK - 1) % SIZE)
        np.testing.assert_array_equal(got.get(), np.full(3, float((RANK - 1) % SIZE)))
        assert (last_engine(comm) == "nccl") == by_nccl, last_engine(comm)
