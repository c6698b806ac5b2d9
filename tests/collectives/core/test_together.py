"""`group()`: calls issued together. `synchronize()`: waiting for all that was started."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Aborted, Communicator, DesyncError, OpTimeout, PeerLost
from tests.collectives.groups import outcomes, ranks

TRANSPORTS = ("inproc", "shm", "tcp")
LARGE = 3 << 20  # bytes: more than any link holds


def filled(count: int, value: float) -> np.ndarray[Any, Any]:
    return np.full(count, value, np.float32)


@pytest.mark.parametrize("count", [1, LARGE // 4])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_may_all_send_before_they_receive(transport: str, count: int) -> None:
    def body(comm: Communicator) -> list[float]:
        others = [r for r in range(comm.size) if r != comm.rank]
        received = {r: filled(count, -1.0) for r in others}
        with comm.group():
            for r in others:
                assert comm.send(filled(count, 10.0 * comm.rank + r), r) is None
            for r in others:
                assert comm.recv(received[r], r) is received[r]
        return [float(received[r][[0, -1]].mean()) for r in others]

    found = ranks(3, body, transport=transport)
    assert found == [[10.0 * r + me for r in range(3) if r != me] for me in range(3)]


@pytest.mark.parametrize("started", [False, True], ids=["idle", "with others under way"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_more_calls_than_are_usually_under_way(transport: str, started: bool) -> None:
    count = 1 << 15
    messages = 70

    def body(comm: Communicator) -> list[float]:
        other = 1 - comm.rank
        sent = [filled(count, 100.0 * comm.rank + i) for i in range(messages)]
        received = [filled(count, -1.0) for _ in range(messages)]
        first = filled(count, 7.0 + comm.rank)
        last = filled(count, 0.0)
        if started:
            comm.send_async(first, other)
        with comm.group():
            for x in sent:
                comm.send(x, other)
            if started:
                comm.recv(last, other)
            for y in received:
                comm.recv(y, other)
        assert not started or last[0] == 7.0 + other
        return [float(y[-1]) for y in received]

    found = ranks(2, body, transport=transport)
    assert found == [[100.0 * (1 - me) + i for i in range(messages)] for me in range(2)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_and_collectives_together(transport: str) -> None:
    def body(comm: Communicator) -> None:
        n = comm.size
        right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
        token, exchanged = filled(4, 0.0), filled(4, 0.0)
        total_out, rows = filled(5, 0.0), np.arange(2 * n, dtype=np.int64) + 100 * comm.rank
        broadcast = filled(6, float(comm.rank))
        small = [filled(3, 1.0 + comm.rank), np.arange(4) * (1 + comm.rank)]
        with comm.group():
            comm.send(filled(4, float(comm.rank)), right)
            comm.recv(token, left)
            total = comm.allreduce(filled(5, 1.0 + comm.rank), out=total_out)
            assert total is total_out
            gathered = comm.allgather(np.array([comm.rank]))
            turned = comm.alltoall(rows)
            assert comm.broadcast(broadcast, root=1) is broadcast
            nothing = comm.reduce(filled(2, 2.0), root=1)
            scattered = comm.reduce_scatter(np.arange(2 * n, dtype=np.float64))
            before = comm.exscan(np.array([5]))
            many = comm.allreduce_many(small)
            assert comm.sendrecv(filled(4, 50.0 + comm.rank), left, exchanged, right) is exchanged
            comm.barrier()
        ones = n * (n + 1) / 2
        assert (token == left).all() and (exchanged == 50.0 + right).all()
        assert (total == ones).all() and (broadcast == 1.0).all()
        assert gathered.ravel().tolist() == list(range(n))
        assert turned.tolist() == [100 * r + 2 * comm.rank + i for r in range(n) for i in (0, 1)]
        assert (nothing is None) if comm.rank != 1 else (nothing == 2.0 * n).all()
        assert scattered.tolist() == [n * (2.0 * comm.rank + i) for i in (0, 1)]
        assert before.tolist() == [5 * comm.rank]
        assert (many[0] == ones).all() and many[1].tolist() == [i * ones for i in range(4)]

    ranks(3, body, transport=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_pipeline_passes_on_what_it_receives_in_the_block(transport: str) -> None:
    def body(comm: Communicator) -> float:
        x = filled(1 << 16, 3.0 if comm.rank == 0 else 0.0)
        with comm.group():
            if comm.rank > 0:
                comm.recv(x, comm.rank - 1)
            if comm.rank < comm.size - 1:
                comm.send(x, comm.rank + 1)
        return float(x[-1])

    assert ranks(4, body, transport=transport) == [3.0] * 4


def test_a_block_and_plain_calls_meet() -> None:
    def body(comm: Communicator) -> list[float]:
        x, y = filled(LARGE // 4, 1.0 + comm.rank), filled(LARGE // 4, 0.0)
        if comm.rank == 0:
            with comm.group():
                total = comm.allreduce(x)
                comm.send(x, 1)
                comm.recv(y, 1)
        else:
            total = comm.allreduce(x)
            comm.recv(y, 0)
            comm.send(x, 0)
        return [float(total[0]), float(y[0])]

    assert ranks(2, body) == [[3.0, 2.0], [3.0, 1.0]]


def test_repeated_calls_are_collected_too() -> None:
    def body(comm: Communicator) -> None:
        x = filled(8, 1.0)
        for _ in range(3):  # from the second on the engine would repeat it by itself
            comm.allreduce(x)
        with comm.group():
            y = filled(8, 0.0)
            comm.allreduce(x, out=y)
            assert (y == 0.0).all()
        assert (y == 2.0).all()
        assert (comm.allreduce(x) == 2.0).all()

    ranks(2, body)


def test_a_status_and_any_source() -> None:
    def body(comm: Communicator) -> tuple[int | None, int | None] | None:
        status = collectives.Status()
        out = filled(10, 0.0)
        with comm.group():
            if comm.rank == 0:
                comm.recv(out, status=status)
            else:
                comm.send(filled(4, 1.0), 0)
        return (status.source, status.count) if comm.rank == 0 else None

    assert ranks(2, body)[0] == (1, 4)


def test_works_of_async_twins_are_done_after_the_block() -> None:
    def body(comm: Communicator) -> None:
        with comm.group():
            work = comm.allreduce_async(filled(3, 1.0))
            many = comm.allreduce_many_async([filled(3, 1.0)])
            assert not work.done()
            with pytest.raises(RuntimeError, match="when the block of group"):
                work.wait(1.0)

            async def impatient() -> None:
                await work

            with pytest.raises(RuntimeError, match="when the block of group"):
                asyncio.run(impatient())
        assert work.done() and (work.wait() == 2.0).all() and (many.result()[0] == 2.0).all()

    ranks(2, body)


def test_an_error_in_the_block_issues_nothing() -> None:
    def body(comm: Communicator) -> None:
        x, y = filled(3, 1.0), filled(3, 5.0)
        works = []

        def fail() -> None:
            with comm.group():
                comm.send(x, 1 - comm.rank)
                comm.recv(y, 1 - comm.rank)
                works.append(comm.allreduce_async(x))
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()
        with pytest.raises(Aborted, match="nothing was sent"):
            works[0].wait()
        assert (y == 5.0).all()
        assert (comm.allreduce(x) == 2.0).all()  # in step with the other rank, which sent nothing either

    ranks(2, body)


def test_wrong_arguments_are_refused_in_the_block() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(ValueError, match="dest is 9"), comm.group():
            comm.send(filled(3, 1.0), 9)
        with pytest.raises(TypeError, match="function"), comm.group():
            comm.allreduce(filled(3, 1.0), op=3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="an op that is a function"), comm.group():
            comm.allreduce(filled(3, 1.0), op=np.hypot)
        assert (comm.allreduce(filled(3, 1.0)) == 2.0).all()

    ranks(2, body)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda comm, plan: comm.allgatherv(np.ones(2)),
        lambda comm, plan: comm.gatherv(np.ones(2)),
        lambda comm, plan: comm.scatter(np.ones((2, 2))),
        lambda comm, plan: comm.scatterv(np.ones(2), [1, 1]),
        lambda comm, plan: comm.alltoallv(np.ones(2), [1, 1]),
        lambda comm, plan: comm.allgatherv_async(np.ones(2)),
        lambda comm, plan: plan(),
        lambda comm, plan: plan.start(),
        lambda comm, plan: comm.allreduce_plan(np.ones(2)),
        lambda comm, plan: comm.dup(),
        lambda comm, plan: comm.split(0),
        lambda comm, plan: comm.synchronize(),
        lambda comm, plan: comm.group().__enter__(),
    ],
)
def test_what_has_to_wait_is_refused_in_the_block(misuse: Any) -> None:
    def body(comm: Communicator) -> None:
        plan = comm.allreduce_plan(np.ones(2))
        with pytest.raises(RuntimeError, match=r"inside a group\(\) block"), comm.group():
            misuse(comm, plan)
        assert (comm.allreduce(filled(3, 1.0)) == 2.0).all()

    ranks(2, body)


def test_other_threads_keep_out_of_the_block() -> None:
    def body(comm: Communicator) -> None:
        found: list[BaseException] = []

        def other() -> None:
            try:
                comm.allreduce(filled(3, 1.0))
            except RuntimeError as error:
                found.append(error)

        with comm.group():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert "another thread is inside" in str(found[0])

    ranks(2, body)


def test_an_empty_block_does_nothing() -> None:
    def body(comm: Communicator) -> None:
        with comm.group():
            pass
        comm.barrier()

    ranks(2, body)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_does_not_come_is_late(transport: str) -> None:
    def body(comm: Communicator) -> Any:
        if comm.rank == 1:
            return None
        works = []

        def wait_in_vain() -> None:
            with comm.group():
                comm.recv(filled(LARGE // 4, 1.0), 1, timeout=0.3)
                works.append(comm.recv_async(filled(LARGE // 4, 1.0), 1, timeout=0.3))

        with pytest.raises((OpTimeout, PeerLost)) as caught:
            wait_in_vain()
        with pytest.raises(type(caught.value)):
            works[0].wait()
        with pytest.raises(type(caught.value)):
            comm.barrier()
        error: Any = caught.value
        return error.late if isinstance(error, OpTimeout) else error.ranks

    assert ranks(2, body, transport=transport)[0] == (1,)


def test_ranks_that_issue_other_collectives_disagree() -> None:
    def body(comm: Communicator) -> None:
        with comm.group():
            if comm.rank == 0:
                comm.allreduce(filled(3, 1.0))
            else:
                comm.allgather(filled(3, 1.0))
            comm.barrier()

    assert any(isinstance(o.error, DesyncError) for o in outcomes(2, body))
    assert all(o.error is not None for o in outcomes(2, body))


def test_a_rank_alone() -> None:
    with collectives.init(rank=0, size=1) as comm:
        x, y = filled(3, 2.0), filled(3, 0.0)
        with comm.group():
            comm.send(x, 0)
            total = comm.allreduce(x)
            comm.recv(y, 0)
        assert (total == 2.0).all() and (y == 2.0).all()


# --- synchronize


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_synchronize_waits_for_all_that_was_started(transport: str) -> None:
    def body(comm: Communicator) -> None:
        comm.synchronize()  # nothing is in progress
        x = filled(1 << 18, 1.0)
        outs = [filled(1 << 18, 0.0) for _ in range(40)]
        works = [comm.allreduce_async(x, out=out) for out in outs]
        plan = comm.allreduce_plan(x)
        plan.start()
        many = comm.allreduce_many_async([x, x])
        comm.synchronize(timeout=30.0)
        assert all(work.done() for work in (*works, many))
        assert all((out == 2.0).all() for out in outs) and (plan.out == 2.0).all()

    ranks(2, body, transport=transport)


def test_synchronize_ends_at_its_timeout_and_the_operation_goes_on() -> None:
    go = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            go.wait(30.0)
            comm.barrier()
            return
        work = comm.barrier_async()
        with pytest.raises(OpTimeout, match=r"synchronize waited 0.05 s, and 1 of the operations"):
            comm.synchronize(timeout=0.05)
        go.set()
        comm.synchronize()
        assert work.done()

    ranks(2, body)


def test_synchronize_raises_the_first_error_of_what_was_started() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            return
        for _ in range(3):
            comm.recv_async(filled(3, 0.0), 1, timeout=0.2)
        with pytest.raises((OpTimeout, PeerLost)) as first:
            comm.synchronize()
        with pytest.raises(type(first.value)) as again:
            comm.synchronize()
        assert str(again.value) == str(first.value)

    ranks(2, body)


def test_synchronize_refuses_what_cannot_be() -> None:
    with collectives.init(rank=0, size=1) as comm:
        with pytest.raises(ValueError, match="this communicator uses no CUDA device"):
            comm.synchronize(stream=0)
        with pytest.raises(ValueError, match="timeout"):
            comm.synchronize(timeout=-1.0)
    with pytest.raises(Aborted, match="is closed"):
        comm.synchronize()
