"""Messages: from whom they are and how long they were, from whoever comes first, both ways at once, and to oneself."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator, DesyncError, OpTimeout, PeerLost, Status
from tests.collectives.groups import outcomes, ranks
from tests.waiting import eventually

TRANSPORTS = ("inproc", "shm", "tcp")
# In a line, in staging, cut into pieces, over several lanes, read out of the sender's memory.
LENGTHS = (0, 1, 7, 8, 500, 5_000, 40_000, 300_000)

transports = pytest.mark.parametrize("transport", TRANSPORTS)


@transports
def test_a_message_may_be_shorter_than_the_array(transport: str) -> None:
    def body(comm: Communicator) -> None:
        for turn in (0, 1):
            for n in LENGTHS:
                for more in (0, 1, 100, n):
                    if comm.rank == turn:
                        comm.send(np.arange(n, dtype=np.int64), 1 - turn)
                        continue
                    out, status = np.full(n + more, -7, np.int64), Status()
                    assert comm.recv(out, turn, status=status) is out
                    assert (status.source, status.count) == (turn, n)
                    assert np.array_equal(out[:n], np.arange(n)) and (out[n:] == -7).all()

    ranks(2, body, transport=transport)


@transports
@pytest.mark.parametrize("background", [False, True])
def test_from_whoever_sends_first(transport: str, background: bool) -> None:
    """Every message once, those of each rank in their order, with its length and sender."""

    def body(comm: Communicator) -> None:
        if comm.rank > 0:
            for n in LENGTHS:
                comm.send(np.full(n, comm.rank, np.int32), 0)
            return
        seen: dict[int, list[int]] = {rank: [] for rank in range(1, comm.size)}
        for _ in range(len(LENGTHS) * (comm.size - 1)):
            out, status = np.zeros(LENGTHS[-1], np.int32), Status()
            got = comm.recv_async(out, status=status).wait() if background else comm.recv(out, status=status)
            assert got is out and status.source is not None and status.count is not None
            assert (out[: status.count] == status.source).all() and not out[status.count :].any()
            seen[status.source].append(status.count)
        assert all(lengths == list(LENGTHS) for lengths in seen.values())

    ranks(4, body, transport=transport)


@transports
def test_a_rank_that_is_ahead_does_not_confuse_it(transport: str) -> None:
    """Rank 1 is inside the next collective, long or short, when rank 2's message comes."""

    def body(comm: Communicator) -> None:
        for n in (1, 200_000):
            if comm.rank == 0:
                status = Status()
                assert np.array_equal(comm.recv(np.zeros(3), status=status), np.full(3, 2.0))
                assert status.source == 2
            elif comm.rank == 2:
                waiting = comm.recv(np.zeros(1), 1)
                comm.send(np.full(3, 2.0 * waiting[0]), 0)
            else:
                comm.send(np.ones(1), 2)
            assert np.array_equal(comm.allreduce(np.ones(n), algorithm="ring"), np.full(n, 3.0))

    ranks(3, body, transport=transport)


@transports
def test_many_that_wait_in_the_background_are_served_in_order(transport: str) -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            outs, statuses = [np.zeros(10) for _ in range(6)], [Status() for _ in range(6)]
            works = [comm.recv_async(out, status=status) for out, status in zip(outs, statuses, strict=True)]
            for rank in range(1, comm.size):
                comm.send_async(np.zeros(0), rank)  # a send is complete once all before it are
            for work, out, status in zip(works, outs, statuses, strict=True):
                assert work.wait() is out
                assert status.count == 10 and (out == status.source).all()
            assert sorted(status.source or 0 for status in statuses) == [1, 1, 2, 2, 3, 3]
        else:
            comm.recv(np.zeros(0), 0)
            for _ in range(2):
                comm.send(np.full(10, float(comm.rank)), 0)

    ranks(4, body, transport=transport)


@transports
def test_a_ring_of_exchanges(transport: str) -> None:
    """Long ones too, in which nobody gets rid of what it sends before the other receives."""

    def body(comm: Communicator) -> None:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for n in LENGTHS:
            x, out, status = np.full(n + comm.rank, comm.rank, np.int16), np.zeros(n + comm.size, np.int16), Status()
            assert comm.sendrecv(x, right, out, left, status=status) is out
            assert (status.source, status.count) == (left, n + left)
            assert (out[: n + left] == left).all() and not out[n + left :].any()
            work = comm.sendrecv_async(x, left, out, right, status=status)
            assert work.wait() is out and work.result() is out
            assert (status.source, status.count) == (right, n + right)
            both = np.full(n, float(comm.rank))
            assert comm.sendrecv(both, right, both, left) is both  # in place
            assert (both == left).all()
        assert comm.sendrecv(np.ones(3), comm.rank, np.zeros(3), comm.rank).all()
        comm.barrier()

    ranks(3, body, transport=transport)


def test_dtypes_of_an_exchange_may_differ() -> None:
    def body(comm: Communicator) -> None:
        mine, theirs = (np.float32, np.int8) if comm.rank == 0 else (np.int8, np.float32)
        got = comm.sendrecv(np.full(5, comm.rank, mine), 1 - comm.rank, np.zeros(5, theirs), 1 - comm.rank)
        assert (got == 1 - comm.rank).all()

    ranks(2, body)


@transports
def test_to_oneself(transport: str) -> None:
    def body(comm: Communicator) -> None:
        for n in (0, 1, 100_000):
            x = np.arange(n, dtype=np.float64)
            comm.send(x, comm.rank)  # never waits,
            comm.send(x + 1, comm.rank)
            x[:] = -1  # and has been read
            status = Status()
            assert np.array_equal(comm.recv(np.zeros(n), comm.rank, status=status), np.arange(n))
            assert (status.source, status.count) == (comm.rank, n)
            assert np.array_equal(comm.recv(np.zeros(n), status=status), np.arange(n) + 1)
            assert status.source == comm.rank
            work = comm.recv_async(np.zeros(n), comm.rank)
            comm.send(np.full(n, 5.0), comm.rank)
            assert np.array_equal(work.wait(), np.full(n, 5.0))
        comm.barrier()

    ranks(2, body, transport=transport)


@transports
@pytest.mark.parametrize("background", [False, True])
def test_a_message_of_ones_own_counts_where_all_others_are_ahead(transport: str, background: bool) -> None:
    def body(comm: Communicator) -> None:
        with comm.dup() as twin:
            x = np.full(3, comm.rank + 1.0)
            if comm.rank == 0:
                comm.broadcast(x, 0, algorithm="binomial")  # on its way when the barrier is over
            twin.barrier()
            if comm.rank == 1:
                if background:
                    work = comm.recv_async(np.zeros(3))
                    comm.send_async(x, 1)
                    assert (work.wait() == 2).all()
                else:
                    comm.send(x, 1)
                    assert (comm.recv(np.zeros(3)) == 2).all()
                comm.broadcast(x, 0, algorithm="binomial")
            assert (x == 1).all()
            comm.barrier()

    ranks(2, body, transport=transport)


def test_alone_nobody_else_can_send() -> None:
    with collectives.init() as comm:
        for source in (0, None):
            with pytest.raises(ValueError, match="from itself that it has not sent"):
                comm.recv(np.zeros(3), source)
        comm.send(np.ones(3), 0)  # all is well still
        assert comm.recv(np.zeros(3)).all()
        with pytest.raises(OpTimeout, match="waiting for rank 0"):
            comm.recv_async(np.zeros(3), timeout=0.05).wait()


@transports
@pytest.mark.parametrize("source", [0, None])
@pytest.mark.parametrize("n", [4, 5_000, 300_000])
def test_too_long_a_message_is_refused_before_anything_is_overwritten(
    transport: str, source: int | None, n: int
) -> None:
    def body(comm: Communicator) -> Any:
        if comm.rank == 0:
            comm.send(np.ones(n), 1)
            return None
        out, status = np.full(n - 1, -7.0), Status()
        with pytest.raises(DesyncError, match=f"{8 * n} bytes for an array of {8 * (n - 1)}") as caught:
            comm.recv(out, source, status=status)
        assert f"is in operation 0: send/recv(float64, {n} elements)" in str(caught.value)
        assert (out == -7).all() and status.source is None and status.count is None
        return None

    # The sender of a long one learns that the receiver has given up, that of a short one when it closes, if at all.
    found = outcomes(2, body, transport=transport)
    found[1].value  # noqa: B018  # raises what the receiver raised
    assert found[0].error is None or isinstance(found[0].error, PeerLost | DesyncError | RuntimeWarning)


def test_a_message_that_is_too_long_is_the_reason_also_after_the_loss_of_another_rank() -> None:
    sent, gone = threading.Event(), threading.Event()

    def body(comm: Communicator) -> None:
        twins = [comm.dup(), comm.dup()]
        if comm.rank == 0:
            comm.send(np.ones(4), 1)
            sent.set()
            assert gone.wait(60)
        elif comm.rank == 2:
            comm.recv_async(np.zeros(1), 0)
            assert eventually(lambda: comm.dump()["operations"][-1]["state"] == "started")
            comm.close()  # in the middle of a call: for the others, this rank is gone
            gone.set()
        else:
            assert sent.wait(60) and gone.wait(60)
            # Each waits for this rank's control thread, which has passed the loss on before it closes the second one.
            for twin in twins:
                twin.close()
            with pytest.raises(DesyncError, match="32 bytes for an array of 24"):
                comm.recv(np.zeros(3), 0)
        for twin in twins:
            twin.close()

    outcomes(3, body)[1].value  # noqa: B018  # raises what rank 1 raised


@transports
def test_another_dtype_is_refused(transport: str) -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.ones(4, np.float32), 1)
            return
        out = np.full(4, -7.0)
        with pytest.raises(DesyncError, match="float32"):
            comm.recv(out)
        assert (out == -7).all()

    outcomes(2, body, transport=transport)[1].value  # noqa: B018


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
def test_all_others_in_a_collective_can_send_nothing(transport: str) -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            with pytest.raises(DesyncError, match="allreduce"):
                comm.recv(np.zeros(50_000))
        else:
            with pytest.raises((DesyncError, PeerLost)):
                comm.allreduce(np.ones(50_000), algorithm="ring")

    ranks(2, body, transport=transport)


@transports
def test_whoever_is_left_may_send(transport: str) -> None:
    """A rank that has gone sends no more; when all have gone, nobody does."""

    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            status = Status()
            first = comm.recv(np.zeros(2), status=status).copy()
            comm.recv(np.zeros(2), status=status)
            assert first.any() and {status.source} < {1, 2}
            with pytest.raises(PeerLost) as caught:
                comm.recv(np.zeros(2))
            assert set(caught.value.ranks) < {1, 2}
        else:
            comm.send(np.ones(2), 0)

    ranks(3, body, transport=transport)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.recv(np.zeros(3), 7), ValueError, "source is 7"),
        (lambda c: c.recv(np.zeros(3), True), TypeError, "source must be an int"),
        (lambda c: c.recv(np.zeros(3), status=3), TypeError, "status must be a collectives.Status, not int"),
        (lambda c: c.recv_async(np.zeros(3), status="x"), TypeError, "collectives.Status"),
        (lambda c: c.sendrecv(np.zeros(3), 0, [0.0]), TypeError, "out is a list"),
        (lambda c: c.sendrecv(None, 0, np.zeros(3)), TypeError, "x is a NoneType"),
        (lambda c: c.sendrecv(np.zeros(3), 9, np.zeros(3)), ValueError, "dest is 9"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with collectives.init() as comm:
        with pytest.raises(error, match=message):
            call(comm)
        comm.barrier()
