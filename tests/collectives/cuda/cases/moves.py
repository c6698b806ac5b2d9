"""Scatter, parts of different lengths, messages, and lists of arrays."""

from __future__ import annotations

import numpy as np

from collectives import Status
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, engines, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Stream, cupy


def rows(rank: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The rows of a rank: as many as its number, so that rank 0 has none."""
    return np.full((rank, 3), rank, np.float32)


@case
def uneven() -> None:
    with start(transport="nccl") as comm:
        all_rows = np.concatenate([rows(r) for r in range(SIZE)])
        mine = cupy.asarray(rows(RANK))
        np.testing.assert_array_equal(comm.allgatherv(mine).get(), all_rows)
        gathered = comm.gatherv(mine, root=1)
        assert (gathered is None) == (RANK != 1)
        if gathered is not None:
            np.testing.assert_array_equal(gathered.get(), all_rows)
        counts = list(range(SIZE))
        given = (cupy.asarray(all_rows), counts) if RANK == 0 else (None, None)
        np.testing.assert_array_equal(comm.scatterv(*given).get(), rows(RANK))
        table = np.arange(SIZE * 2, dtype=np.int16).reshape(SIZE, 2)
        row = comm.scatter(cupy.asarray(table) if RANK == SIZE - 1 else None, root=SIZE - 1)
        np.testing.assert_array_equal(row.get(), table[RANK])
        # Rank r has r rows for each rank.
        leaving = cupy.asarray(np.repeat(np.arange(SIZE, dtype=np.float64) + 10 * RANK, RANK))
        coming = np.concatenate([np.full(r, RANK + 10.0 * r) for r in range(SIZE)])
        np.testing.assert_array_equal(comm.alltoallv(leaving, [RANK] * SIZE).get(), coming)
        whole = cupy.asarray(np.arange(len(all_rows), dtype=np.int64))
        start_of_mine = sum(counts[:RANK])
        expected = SIZE * np.arange(len(all_rows))[start_of_mine : start_of_mine + RANK]
        np.testing.assert_array_equal(comm.reduce_scatterv(whole, counts).get(), expected)
        ours = [o["engine"] for o in comm.dump()["operations"] if o["dtype"] in ("float32", "float64")]
        assert ours and set(ours) == {"nccl"}, ours


@case
def uneven_on_the_host() -> None:
    """The same calls where NCCL cannot be used: through host memory, and the results are on the device."""
    with start() as comm:
        mine = cupy.asarray(rows(RANK))
        np.testing.assert_array_equal(comm.allgatherv(mine).get(), np.concatenate([rows(r) for r in range(SIZE)]))
        table = np.arange(SIZE * 2.0).reshape(SIZE, 2)
        row = comm.scatter(cupy.asarray(table) if RANK == 0 else None)
        np.testing.assert_array_equal(row.get() if RANK == 0 else row, table[RANK])
        np.testing.assert_array_equal(comm.scatter(table if RANK == 0 else None), table[RANK])
        assert "nccl" not in engines(comm)


@case
def messages() -> None:
    """By NCCL, once its communicator exists; before, through host memory."""
    with start() as comm:
        peer, status = 1 - RANK, Status()
        x, y = cupy.asarray(np.full(5, RANK, np.float32)), cupy.asarray(np.zeros(5, np.float32))
        for engine in ("host", "nccl"):
            y.set(np.zeros(5, np.float32))
            if RANK == 0:
                comm.send(x, 1)
                assert comm.recv(y, 1, status=status) is y
            else:
                comm.recv(y, 0, status=status)
                comm.send(x, 0)
            comm.synchronize()
            np.testing.assert_array_equal(y.get(), np.full(5, peer))
            assert (status.source, status.count) == (peer, 5)
            last = engines(comm)[-2:]
            assert (set(last) == {"nccl"}) == (engine == "nccl"), last
            comm.prepare("send", "recv")
        comm.sendrecv(x, peer, y, peer, stream=Stream())
        comm.synchronize()
        np.testing.assert_array_equal(y.get(), np.full(5, peer))
        sent = [(o["collective"], o["peer"], o["sequence"], o["state"]) for o in comm.dump()["operations"]][-2:]
        assert sent == [("send", peer, 2, "done"), ("recv", peer, 2, "done")], sent
        work = comm.send_async(x, 1) if RANK == 0 else comm.recv_async(y, 0)
        work.wait()
        comm.send_async(x, RANK)  # to itself: a copy in host memory
        comm.recv(y, RANK)
        np.testing.assert_array_equal(y.get(), x.get())
        comm.barrier()


@case
def many() -> None:
    """A list of arrays is one operation, whatever their shapes and dtypes."""
    with start() as comm:
        hosts = [np.full((3, 2), RANK + 1.0, np.float32), np.arange(4), np.zeros(0), np.full(2, RANK + 1j)]
        arrays = [cupy.asarray(host) for host in hosts]
        results = comm.allreduce_many(arrays)
        sums = [np.full((3, 2), 3.0), 2 * np.arange(4), np.zeros(0), np.full(2, 1 + 2j)]
        for result, expected in zip(results, sums, strict=True):
            np.testing.assert_array_equal(result.get(), expected)
        assert engines(comm)[-1] == "nccl"
        before = len(engines(comm))
        assert comm.allreduce_many_async(arrays, out=arrays).wait() == arrays
        np.testing.assert_array_equal(arrays[1].get(), sums[1])
        assert len(engines(comm)) == before + 1
        # One dtype that NCCL lacks: all go through host memory.
        short = comm.allreduce_many([cupy.asarray(np.ones(2, np.int16)), cupy.asarray(np.ones(2))])
        np.testing.assert_array_equal(short[0].get(), [2, 2])


@case
def grouped() -> None:
    """Calls in a `group()` block: messages in one operation of NCCL, collectives one by one, in their order."""
    with start() as comm:
        right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        x, y, z = (cupy.asarray(np.full(5, value, np.float32)) for value in (RANK, -1.0, -1.0))
        with raises(ValueError, "comm.prepare()"), comm.group():
            comm.allreduce(x)
        comm.prepare("allreduce", "send", "recv")
        with comm.group():  # all send before they receive
            comm.send(x, right)
            comm.recv(y, left)
            total = comm.allreduce(x)
            work = comm.allreduce_async(x, "max")
            with raises(RuntimeError, "after the block"):
                work.wait()
            parts = comm.allreduce_many([x, x], "min")
        np.testing.assert_array_equal(y.get(), np.full(5, left))
        np.testing.assert_array_equal(total.get(), np.full(5, SIZE * (SIZE - 1) / 2))
        np.testing.assert_array_equal(work.wait().get(), np.full(5, SIZE - 1))
        assert work.done()
        np.testing.assert_array_equal(parts[1].get(), np.zeros(5))
        assert set(engines(comm)[-5:]) == {"nccl"}
        with comm.group():  # what is received is sent on
            comm.sendrecv(x, right, y, left)
            comm.sendrecv(y, right, z, left)
        np.testing.assert_array_equal(z.get(), np.full(5, (left - 1) % SIZE))
        if RANK == 0:  # the other ranks make the same calls outside a block
            with comm.group():
                first, second = comm.allreduce(x), comm.allreduce(x, "max")
        else:
            first, second = comm.allreduce(x), comm.allreduce(x, "max")
        np.testing.assert_array_equal(first.get(), total.get())
        np.testing.assert_array_equal(second.get(), np.full(5, SIZE - 1))
        with comm.group():  # with a call on host memory
            host = np.ones(3)
            comm.allreduce(host, out=host)
            comm.allreduce(x, out=y)
        np.testing.assert_array_equal(host, np.full(3, SIZE))
        np.testing.assert_array_equal(y.get(), total.get())
        with raises(ValueError, "two streams"), comm.group():
            comm.send(x, right)
            comm.recv(y, left, stream=Stream())
        with raises(RuntimeError, "group() block"), comm.group():
            comm.allgatherv(x)
        before = len(engines(comm))
        with raises(ValueError, "shape"), comm.group():
            comm.allreduce(x)
            comm.allreduce(x, out=cupy.empty((6,), np.float32))
        assert len(engines(comm)) == before  # nothing of the block was issued
        np.testing.assert_array_equal(comm.allreduce(x).get(), total.get())
