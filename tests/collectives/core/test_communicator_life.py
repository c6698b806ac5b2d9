"""How communicators begin, multiply, are shared by threads, and end."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator
from tests.collectives.groups import nothing_left, ranks
from tests.rendezvous.threads import background

ONES = np.ones(4, np.float32)


TEMPORARY = {
    "a call": lambda comm: comm.dup().allreduce(ONES),
    "of a split": lambda comm: comm.split(0).allreduce(ONES),
    "a call that is never repeated": lambda comm: comm.dup().allgatherv(ONES[:1]) * comm.size,
    "another call": lambda comm: (comm.dup().barrier(), ONES * comm.size)[1],
    "in the background": lambda comm: comm.dup().allreduce_async(ONES).wait(),
    "many in the background": lambda comm: comm.dup().allreduce_many_async([ONES]).result()[0],
    "awaited": lambda comm: asyncio.run(_awaited(comm)),
    "a plan": lambda comm: comm.dup().allreduce_plan(ONES)(),
    "a plan in the background": lambda comm: comm.dup().allreduce_plan(ONES).start().wait(),
    "by a function": lambda comm: comm.dup().allreduce(ONES, np.add),
    "an exchange": lambda comm: comm.dup().sendrecv(ONES * comm.size, comm.rank, np.zeros(4, np.float32)),
    "a method of it": lambda comm: _called(comm.dup().allreduce),
}


def _called(method: Any) -> Any:
    return method(ONES)


async def _awaited(comm: Communicator) -> Any:
    return await comm.dup().allreduce_async(ONES)


@pytest.mark.parametrize("how", TEMPORARY)
def test_a_communicator_that_nobody_holds_lives_as_long_as_its_call(how: str) -> None:
    def body(comm: Communicator) -> None:
        for _ in range(3):
            assert (TEMPORARY[how](comm) == comm.size).all()

    with nothing_left():
        ranks(2, body)


def test_it_goes_with_its_last_work_and_plan() -> None:
    comm = collectives.init()
    shut, work, plan = comm._shut, comm.allreduce_async(ONES), comm.allreduce_plan(ONES)
    del comm
    assert np.array_equal(work.wait(), ONES)
    del work
    assert np.array_equal(plan(), ONES)
    del plan
    assert not shut.alive


def test_two_threads_at_once_are_refused() -> None:
    refused = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            assert refused.wait(30)
            comm.barrier()
            comm.barrier()
            return
        thread, first = background(comm.barrier)
        while not comm._runner.gate.latch.taken:
            time.sleep(0.001)  # until that thread is inside
        for call in (comm.barrier, comm.barrier_async, lambda: comm.allreduce(ONES)):
            with pytest.raises(RuntimeError, match=r"another thread is inside.*dup"):
                call()
        refused.set()
        thread.join(30)
        assert first.error is None
        comm.barrier()  # one after the other is fine

    ranks(2, body)


def test_each_thread_with_its_own_communicator() -> None:
    def body(comm: Communicator) -> list[float]:
        family = [comm.dup() for _ in range(4)]
        sums = [0.0] * 4

        def work(number: int) -> None:
            for _ in range(50):
                sums[number] += float(family[number].allreduce(np.array(float(number)))[()])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for child in family:
            child.close()
        return sums

    assert ranks(2, body) == [[0.0, 100.0, 200.0, 300.0]] * 2


def test_close_is_idempotent_and_ends_everything() -> None:
    def body(comm: Communicator) -> None:
        comm.barrier()
        comm.close()
        comm.close()
        for call in (
            comm.barrier,
            lambda: comm.allreduce(ONES),
            lambda: comm.allreduce_async(ONES),
            comm.dup,
            lambda: comm.split(0),
            lambda: comm.empty(3),
        ):
            with pytest.raises(collectives.Aborted, match="closed"):
                call()
        assert (comm.rank < comm.size, comm.epoch) == (True, 0)

    with nothing_left():
        ranks(2, body)


def test_close_from_another_thread_ends_a_call_that_waits() -> None:
    waiting, over = threading.Event(), threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            assert over.wait(30)
            return

        def call() -> None:
            waiting.set()
            comm.allreduce(ONES)

        thread, outcome = background(call)
        assert waiting.wait(30)
        comm.close()
        thread.join(10)
        over.set()
        assert isinstance(outcome.error, collectives.Aborted), outcome.error

    ranks(2, body)


def test_who_is_through_a_barrier_may_close_at_once() -> None:
    """On a core that others keep busy, a rank often looks at who has closed before it sees that its barrier is over."""

    def body(comm: Communicator) -> None:
        for _ in range(3):
            comm.barrier()

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        for _ in range(20):
            ranks(3, body)
    finally:
        os.sched_setaffinity(0, allowed)
        for process in busy:
            process.kill()
            process.wait()


def test_a_communicator_that_is_dropped_is_closed() -> None:
    with nothing_left():
        comm = collectives.init()
        assert comm.allreduce(ONES).tolist() == [1, 1, 1, 1]
        del comm


def test_the_context_manager_closes_on_errors_too() -> None:
    with pytest.raises(KeyError), collectives.init() as comm:
        raise KeyError
    with pytest.raises(collectives.Aborted):
        comm.barrier()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
def test_a_forked_child_may_not_use_it_and_the_parent_may_go_on(transport: str) -> None:
    def body(comm: Communicator) -> bytes:
        comm.barrier()
        if comm.rank == 1:
            comm.barrier()
            return b""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                comm.allreduce(ONES)
            except collectives.CollectiveError as error:
                os.write(writing, str(error).encode())
            comm.close()
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            message = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        comm.barrier()
        return message

    message, _ = ranks(2, body, transport=transport)
    assert b"forked" in message
    assert b"init() in the child" in message


def test_what_is_attached_is_closed_with_it() -> None:
    def body(comm: Communicator) -> None:
        child, grandchild = comm.attached(), None
        assert child.allreduce(np.ones(3)).tolist() == [2.0] * 3
        grandchild = child.attached()
        other = comm.dup()
        comm.barrier()
        comm.close()
        assert child.closed and grandchild.closed and not other.closed
        with pytest.raises(collectives.Aborted, match="is closed"):
            child.barrier()
        other.barrier()
        child = other.attached()
        reference = weakref.ref(other)
        other.barrier()
        del other
        gc.collect()
        assert reference() is None and child.closed

    with nothing_left():
        ranks(2, body)


def test_dup_is_independent() -> None:
    def body(comm: Communicator) -> tuple[int, int, float]:
        twin = comm.dup()
        comm.close()
        result = twin.allreduce(np.array(1.0))
        again = twin.dup()
        both = float(result) + float(again.allreduce(np.array(1.0)))
        again.close()
        twin.close()
        return twin.rank, twin.size, both

    with nothing_left():
        assert ranks(3, body) == [(0, 3, 6.0), (1, 3, 6.0), (2, 3, 6.0)]


def part(comm: Communicator, color: int, key: int | None = None) -> Communicator:
    found = comm.split(color, key)
    assert found is not None
    return found


def test_split_groups_by_color_and_orders_by_key() -> None:
    def body(comm: Communicator) -> tuple[int, int, list[int]]:
        with part(comm, comm.rank % 2, -comm.rank) as half:
            members = half.allgather(np.array(comm.rank)).tolist()
            with part(half, 7) as nested:
                assert (nested.rank, nested.size) == (half.rank, half.size)
                assert nested.name.startswith(half.name)
            return half.rank, half.size, members

    with nothing_left():
        found = ranks(5, body)
    assert found == [(2, 3, [4, 2, 0]), (1, 2, [3, 1]), (1, 3, [4, 2, 0]), (0, 2, [3, 1]), (0, 3, [4, 2, 0])]


def test_split_without_a_color_gives_nothing() -> None:
    def body(comm: Communicator) -> bool:
        pair = comm.split(None if comm.rank == 1 else 2**40)
        assert comm.split(None) is None
        if pair is None:
            return False
        with pair:
            assert pair.allreduce(ONES)[0] == 2
        return True

    assert ranks(3, body) == [True, False, True]


def test_what_it_is() -> None:
    def body(comm: Communicator) -> tuple[int, int, int, int, int, str]:
        return comm.rank, comm.size, comm.local_rank, comm.local_size, comm.epoch, repr(comm)

    found = ranks(2, body, name="job")
    assert found[1] == (1, 2, 1, 2, 0, "<Communicator 'job': rank 1 of 2 over inproc, epoch 0>")
