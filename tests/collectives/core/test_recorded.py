"""What a communicator tells of its operations and its memory, in any state."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator
from tests.collectives.groups import nothing_left, outcomes, ranks
from tests.waiting import eventually

KEYS = {
    "sequence", "collective", "dtype", "count", "op", "root", "peer", "algorithm", "engine", "state",
    "queued", "begin", "first", "end", "waited", "sent", "received", "error",
}  # fmt: skip


def operations(comm: Communicator) -> list[dict[str, Any]]:
    """What it dumps, which JSON gives back as it is."""
    dump = comm.dump()
    assert json.loads(json.dumps(dump)) == dump
    return list(dump["operations"])


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_operations_are_recorded_in_order_with_what_they_took(transport: str) -> None:
    def body(comm: Communicator) -> None:
        before = time.monotonic()
        last = len(operations(comm))
        comm.allreduce(np.ones(1000, np.float32))
        comm.broadcast(np.ones(10), root=1)
        comm.allreduce_async(np.ones(3, np.int32), "max").wait()
        comm.send(np.ones(5), 1) if comm.rank == 0 else comm.recv(np.empty(5), 0)
        comm.barrier()
        after = time.monotonic()
        dump = comm.dump()
        assert (dump["version"], dump["rank"], dump["size"], dump["name"]) == (1, comm.rank, 2, comm.name)
        assert dump["epoch"] == 0 and dump["pid"] == os.getpid() and dump["host"]
        assert dump["error"] is None and not dump["closed"]
        assert before < dump["clock"]["now"] and abs(time.time() - dump["clock"]["unix"]) < 60
        found = operations(comm)[last:]
        assert all(set(each) == KEYS for each in found)
        assert [each["collective"] for each in found] == [
            "allreduce", "broadcast", "allreduce", "recv" if comm.rank else "send", "barrier",
        ]  # fmt: skip
        first = found[0]["sequence"]
        assert [each["sequence"] for each in found] == [first, first + 1, first + 2, 0, first + 3]
        total, copy, background, message, _ = found
        assert (total["dtype"], total["count"], total["op"], total["root"]) == ("float32", 1000, "sum", None)
        assert (copy["dtype"], copy["count"], copy["op"], copy["root"]) == ("float64", 10, None, 1)
        assert (background["dtype"], background["op"]) == ("int32", "max")
        assert (message["peer"], message["algorithm"]) == (1 - comm.rank, None)
        assert total["algorithm"] in comm.explain("allreduce", 4000)
        assert total["sent"] > 0 and total["received"] > 0
        assert (copy["sent"], copy["received"]) == ((80, 0) if comm.rank == 1 else (0, 80))
        assert (message["sent"], message["received"]) == ((40, 0) if comm.rank == 0 else (0, 40))
        earlier = before
        for each in found:
            assert each["state"] == "done" and each["error"] is None
            assert each["engine"] in ("schedule", "board", "pool")
            assert earlier - 1e-5 <= each["queued"] <= each["begin"] <= each["end"] <= after + 1e-5
            assert each["first"] is None or each["begin"] <= each["first"] <= each["end"]
            assert 0 <= each["waited"] <= each["end"] - each["begin"] + 1e-6
            earlier = each["begin"]

    with nothing_left():
        ranks(2, body, transport=transport)


def test_the_last_thousand_are_kept() -> None:
    def body(comm: Communicator) -> None:
        for i in range(1500):
            comm.allreduce(np.array(i))
        found = operations(comm)
        assert len(found) == 1000
        first = found[0]["sequence"]
        assert [each["sequence"] for each in found] == list(range(first, first + 1000))

    ranks(2, body)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_the_operation_that_waits_for_a_missing_rank_is_shown(transport: str, background: bool) -> None:
    there = threading.Event()

    def body(comm: Communicator) -> None:
        comm.barrier()
        if comm.rank == 1:
            assert there.wait(60)
            comm.allreduce(np.ones(4))
            return
        seen: list[dict[str, Any]] = []

        def look() -> None:
            def waits() -> bool:
                seen[:] = operations(comm)[-1:]
                return seen[0]["collective"] == "allreduce" and seen[0]["waited"] > 0.02

            eventually(waits, 30.0)
            there.set()

        looking = threading.Thread(target=look)
        looking.start()
        if background:
            comm.allreduce_async(np.ones(4)).wait()
        else:
            comm.allreduce(np.ones(4))
        looking.join()
        (late,) = seen
        assert late["state"] == "started" and late["end"] is None and late["waited"] > 0.02
        assert late["sent"] is None and late["error"] is None
        done = operations(comm)[-1]
        assert done["state"] == "done" and done["begin"] == pytest.approx(late["begin"], abs=1e-5)
        assert done["end"] > late["begin"] + 0.02 and done["waited"] >= late["waited"] - 1e-5

    with nothing_left():
        ranks(2, body, transport=transport)


def test_failed_operations_say_why_also_when_the_communicator_is_broken_and_closed() -> None:
    def body(comm: Communicator) -> None:
        assert operations(comm)
        comm.barrier()
        if comm.rank == 1:
            return
        with pytest.raises(collectives.CollectiveError) as caught:
            comm.allreduce(np.ones(4), timeout=20)
        failed = operations(comm)[-1]
        assert failed["state"] == "failed" and failed["collective"] == "allreduce"
        assert failed["error"] == str(caught.value)
        assert failed["end"] >= failed["begin"]
        dump = comm.dump()
        assert dump["error"] == f"{type(caught.value).__name__}: {caught.value}"
        comm.close()
        assert comm.dump()["closed"]
        again = operations(comm)[-1]
        assert again == failed | {key: again[key] for key in TIMES}
        assert comm.memory()["heap"] == 0

    with nothing_left():
        for outcome in outcomes(2, body):
            assert outcome.error is None


TIMES = ("queued", "begin", "first", "end", "waited")  # two dumps agree on them within the clock's resolution


@pytest.mark.parametrize("transport", ["inproc", "shm", "tcp"])
def test_memory_counts_what_is_in_use(transport: str) -> None:
    def body(comm: Communicator) -> None:
        comm.allreduce(np.ones(100_000))
        before = comm.memory()
        assert json.loads(json.dumps(before)) == before
        assert set(before) == {
            "arena_mapped", "arena_touched", "staging", "heap", "inboxes", "schedules", "records", "nccl",
            "leader", "device_heap", "encoded",
        }  # fmt: skip
        assert before["schedules"] > 0 and before["records"] > 0
        array = comm.empty(1 << 20, "uint8")
        shares = transport != "tcp"
        assert comm.memory()["heap"] - before["heap"] == (1 << 20 if shares else 0)
        small = comm.empty(10, "uint8")
        assert comm.memory()["heap"] - before["heap"] == ((1 << 20) + 64 if shares else 0)
        del array, small
        assert comm.memory()["heap"] == before["heap"]
        assert (before["inboxes"] > 0) == (transport == "tcp")
        assert (before["arena_touched"] > 0) == (transport == "shm")
        assert before["arena_touched"] <= before["arena_mapped"]
        assert before["staging"] <= before["arena_mapped"]

    with nothing_left():
        ranks(2, body, transport=transport)
