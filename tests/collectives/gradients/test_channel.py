"""Channels, sparse rows and small objects, between ranks that are threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Aborted, Communicator, DesyncError
from collectives.arrays.recycle import aligned
from collectives.gradients import sparse
from collectives.gradients.channel import channel, joined_rows, located, reduce
from collectives.gradients.plan import Entry, Plan, plan
from collectives.gradients.wire import Rules
from tests.collectives.groups import outcomes, ranks

VECTOR = Entry("v", "dense", "float32", (5,))
TABLE = Entry("t", "sparse", "float32", (-1, 2), "int64")
BOTH = plan(Rules("sum", bucket_bytes=4), (VECTOR, TABLE, VECTOR), 3)


def exchange(comm: Communicator, agreed: Plan, value: float) -> list[Any]:
    """One step, as a framework's package would make it; gives the last bucket's results."""
    way = channel(comm)
    way.agree(agreed, 1, None)
    found: list[Any] = []
    for bucket in agreed.buckets:
        found = [*reduce(way.comm, agreed, bucket, [np.full(5, value, np.float32) for _ in bucket.dense], None)]
        if bucket.sparse:
            rows = sparse.Rows(np.array([comm.rank]), np.full((1, 2), value, np.float32))
            found = [*found, *joined_rows(way.comm, [rows for _ in bucket.sparse], None)[0]]
    return found


def test_there_is_one_channel_for_a_communicator() -> None:
    def body(comm: Communicator) -> None:
        assert channel(comm) is channel(comm)
        assert channel(comm).comm is channel(comm).comm is not comm
        assert channel(comm.dup()) is not channel(comm)
        comm.barrier()
        way = channel(comm)
        comm.close()
        with pytest.raises(Aborted, match="closed"):
            way.comm  # noqa: B018

    ranks(2, body)


def test_ranks_of_one_plan_go_on() -> None:
    for found in ranks(3, lambda comm: exchange(comm, BOTH, comm.rank + 1.0)):
        (dense,) = found[:1]
        np.testing.assert_array_equal(dense, np.full(5, 6.0))


def test_every_rank_learns_of_a_difference_and_can_go_on() -> None:
    def body(comm: Communicator) -> str:
        entries = (VECTOR, Entry("extra", "none")) if comm.rank == 1 else (VECTOR, VECTOR)
        with pytest.raises(DesyncError) as caught:
            exchange(comm, plan(Rules("sum"), entries, 3), 1.0)
        exchange(comm, BOTH, 1.0)
        return str(caught.value)

    found = ranks(3, body)
    assert len(set(found)) == 1
    assert "variable 1 'extra' or 'v' is float32[5] on ranks 0, 2 and None on rank 1" in found[0]
    assert "missing='zero'" in found[0]


@pytest.mark.parametrize("steps", [(3, 1, 2), (2, 2, 2), (0, 0, 1), (1, 4, 4)])
def test_ranks_that_joined_add_nothing(steps: tuple[int, ...]) -> None:
    def body(comm: Communicator) -> tuple[list[float], int, int]:
        sums, rows = [], 0
        for _ in range(steps[comm.rank]):
            way = channel(comm)
            dense = exchange(comm, BOTH, 1.0)
            sums.append(float(dense[0][0]))
            assert way.size == 3
        rows = len(exchange(comm, plan(Rules("sum"), (TABLE,), 3), 1.0)[0].indices) if steps == (2, 2, 2) else 0
        return sums, rows, channel(comm).join()

    found = ranks(3, body)
    for rank, (sums, rows, last) in enumerate(found):
        assert sums == [float(sum(step < count for count in steps)) for step in range(steps[rank])]
        assert last == max(rank for rank, count in enumerate(steps) if count == max(steps))
        assert rows == (3 if steps == (2, 2, 2) else 0)


def test_joining_rows() -> None:
    agreed = plan(Rules("sum"), (TABLE,), 2)

    def body(comm: Communicator) -> Any:
        if comm.rank == 1:
            return channel(comm).join()
        (rows,) = exchange(comm, agreed, 2.0)
        assert rows.indices.tolist() == [0] and rows.values.tolist() == [[2.0, 2.0]]
        return channel(comm).join()

    assert ranks(2, body) == [0, 0]


def test_joining_has_no_place_in_a_maximum() -> None:
    agreed = plan(Rules("max"), (VECTOR,), 2)

    def body(comm: Communicator) -> None:
        channel(comm).join() if comm.rank else exchange(comm, agreed, 1.0)

    for outcome in outcomes(2, body):
        assert isinstance(outcome.error, DesyncError)
        assert "rank 1 joined" in str(outcome.error) and "not 'max'" in str(outcome.error)


def test_a_lone_rank_agrees_with_itself() -> None:
    ((found,),) = ranks(1, lambda comm: exchange(comm, plan(Rules("average"), (VECTOR,), 1), 4.0))
    assert found.tolist() == [4.0] * 5
    assert ranks(1, lambda comm: channel(comm).join()) == [0]


def test_several_ops_and_dtypes_in_a_bucket() -> None:
    entries = (VECTOR, Entry("h", "dense", "float16", (5,)), Entry("d", "dense", "float64", (5,)))
    agreed = plan(Rules("average"), entries, 2)

    def body(comm: Communicator) -> list[Any]:
        (bucket,) = agreed.buckets
        arrays = [np.full(5, i + comm.rank, agreed.wire(i).dtype) for i in bucket.dense]
        return reduce(comm, agreed, bucket, arrays, None)

    for double, half, single in ranks(2, body):
        assert (double.dtype, half.dtype, single.dtype) == (np.float64, np.float16, np.float32)
        assert (double[0], half[0], single[0]) == (2.5, 3.0, 0.5)  # the half is scaled outside


def test_rows_of_any_number_and_dtype() -> None:
    def mine(rank: int) -> list[sparse.Rows]:
        return [
            sparse.Rows(np.arange(rank, dtype=np.int32), np.full((rank, 3), rank, np.float16)),
            sparse.Rows(np.arange(3 - rank), np.full((3 - rank, 1, 2), rank + 0.5)),
            sparse.Rows(np.empty(0, np.int64), np.empty((0, 7), np.int8)),
        ]

    for (first, second, third), nbytes in ranks(4, lambda comm: joined_rows(comm, mine(comm.rank), None)):
        assert first.indices.tolist() == [0, 0, 1, 0, 1, 2] and first.indices.dtype == np.int32
        assert first.values[:, 0].tolist() == [1, 2, 2, 3, 3, 3] and first.values.shape == (6, 3)
        assert second.indices.tolist() == [0, 1, 2, 0, 1, 0]
        assert second.values[:, 0, 1].tolist() == [0.5, 0.5, 0.5, 1.5, 1.5, 2.5]
        assert third.values.shape == (0, 7)
        assert all(array.ctypes.data % 64 == 0 for rows in (first, second) for array in rows)
        assert nbytes % 8 == 0


def test_rows_that_cannot_be_are_refused() -> None:
    rows = [sparse.Rows(np.arange(2), np.ones((2, 3), np.float32))]
    message = sparse.pack(rows)
    assert sparse.unpack(message, rows, 1)[0].values.tolist() == rows[0].values.tolist()
    for count in (-1, 3, 1 << 60):
        wrong = message.copy()
        wrong[:8].view(np.int64)[0] = count
        with pytest.raises(DesyncError, match="rank 0 announces"):
            sparse.unpack(wrong, rows, 1)
    with pytest.raises(DesyncError, match="bytes were received"):
        sparse.unpack(np.concatenate([message, message]), rows, 1)


def test_memory_begins_on_a_cache_line() -> None:
    for shape in ((), (0, 3), (1,), (3, 5), (100_000,)):
        for dtype in (np.float16, np.float64, np.uint8):
            array = aligned(shape, np.dtype(dtype))
            assert array.shape == shape and array.dtype == dtype and array.flags.writeable
            assert array.ctypes.data % 64 == 0 or array.size == 0


def test_errors_keep_their_type_and_ranks() -> None:
    lost = located(collectives.PeerLost("gone", [3]), "step 7")
    assert isinstance(lost, collectives.PeerLost) and lost.ranks == (3,) and str(lost) == "step 7: gone"
    late = located(collectives.OpTimeout("late", [1, 2]), "step 7")
    assert isinstance(late, collectives.OpTimeout) and late.late == (1, 2)
    assert type(located(Aborted("closed"), "step 7")) is Aborted
    other = KeyError("x")
    assert located(other, "step 7") is other
