"""Operations in the background: their order, their errors, and waiting for them."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator
from tests.collectives.groups import nothing_left, ranks

ONES = np.ones(4, np.float32)


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_background_operations_complete_in_order(transport: str) -> None:
    def body(comm: Communicator) -> None:
        x = np.arange(50_000, dtype=np.int64)
        works = [comm.allreduce_async(x + i) for i in range(6)]
        assert comm.allreduce(np.array(1)) == 3  # comes after them
        assert all(work.done() for work in works)
        for i, work in enumerate(works):
            assert np.array_equal(work.result(), 3 * (x + i))
            assert work.result() is work.result() is work.wait() is work.wait(1.0)

    ranks(3, body, transport=transport)


def test_waiting_for_work_may_time_out_while_it_goes_on() -> None:
    go = threading.Event()

    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            assert go.wait(30)
        work = comm.allreduce_async(ONES)
        if comm.rank == 0:
            assert not work.done()
            with pytest.raises(collectives.OpTimeout):
                work.wait(0.05)
            with pytest.raises(ValueError, match="nan"):
                work.wait(math.nan)
            go.set()
        assert work.result()[0] == 2
        assert work.done()

    ranks(2, body)


def test_errors_of_background_work_come_with_its_result() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 0:
            work = comm.allreduce_async(ONES, timeout=0.1)
            later = comm.barrier_async()
            with pytest.raises(collectives.OpTimeout):
                work.result()
            with pytest.raises(collectives.OpTimeout):
                later.wait()
            over.set()
        assert over.wait(30)

    over = threading.Event()
    with nothing_left():
        ranks(2, body)


def test_work_can_be_awaited() -> None:
    def body(comm: Communicator) -> float:
        async def main() -> float:
            works = [comm.allreduce_async(np.full(3, float(i))) for i in range(5)]
            results = await asyncio.gather(*(collect(work) for work in reversed(works)))
            await comm.barrier_async()
            return float(sum(r[0] for r in results))

        async def collect(work: collectives.Work[Any]) -> Any:
            return await work

        return asyncio.run(main())

    with nothing_left():
        assert ranks(2, body) == [20.0, 20.0]


def test_awaited_errors_and_cancelling() -> None:
    def body(comm: Communicator) -> None:
        async def main() -> None:
            with pytest.raises(collectives.OpTimeout):
                await comm.allreduce_async(ONES, timeout=0.2)

        async def give_up() -> None:
            work = comm.allreduce_async(ONES, timeout=0.3)
            task = asyncio.ensure_future(wrap(work))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async def wrap(work: collectives.Work[Any]) -> Any:
            return await work

        if comm.rank == 0:
            asyncio.run(give_up())
            asyncio.run(main())
            over.set()
        assert over.wait(30)

    over = threading.Event()
    with nothing_left():
        ranks(2, body)
