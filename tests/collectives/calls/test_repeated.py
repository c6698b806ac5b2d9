"""Calls made again go a shorter way; nobody but a clock can tell."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import collectives
from collectives import Communicator
from collectives.arrays.wire import WireChoice
from collectives.schedule.table import parse
from tests.collectives.groups import ranks

METHODS = (
    *("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "gather", "alltoall", "barrier"),
    *("send", "recv", "scan", "exscan"),
)


def _known(comm: Communicator) -> dict[str, int]:
    made = dict(zip(comm._runner._forms, comm._runner.repeaters, strict=True))
    return {name: 0 if (repeater := made[name]) is None else repeater.known for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_it_is_documented_as_it_was_written(name: str) -> None:
    with collectives.init() as comm:
        short, written = getattr(comm, name), getattr(Communicator, name)
        unbound = inspect.signature(written)
        parameters = list(unbound.parameters.values())[1:]
        assert inspect.signature(short) == unbound.replace(parameters=parameters)
        assert (short.__doc__, short.__name__) == (written.__doc__, name)
        with pytest.raises(TypeError, match="axis"):
            short(np.ones(3), axis=0)


def test_the_same_calls_are_known_and_other_ones_are_not() -> None:
    def body(comm: Communicator) -> Any:
        before = _known(comm)  # what setting up the group has called
        x = np.arange(4, dtype=np.float32)
        other = np.zeros((2, 4), np.float32)
        for _ in range(3):
            for root in (0, 1):
                comm.reduce(x, "max", root)
                comm.reduce(x, op="max", root=root)
                comm.broadcast(x, root=root)
                comm.broadcast(x, root)
            comm.allgather(x)
            comm.allgather(x, out=other, algorithm="auto")
            comm.barrier()
            comm.barrier(algorithm="".join(["au", "to"]))
            comm.broadcast(x, np.int64(1))
        known = _known(comm)
        return [known[name] - before[name] for name in ("reduce", "broadcast", "allgather", "barrier", "alltoall")]

    assert ranks(2, body) == [[2, 2, 1, 1, 0]] * 2


def test_wire_auto_goes_the_short_way_where_numbers_are_sent_as_they_are() -> None:
    table = parse("allreduce any any 1K float32 wire=auto\nallreduce any any any int8 wire=auto")

    def body(comm: Communicator) -> Any:
        found = []
        wires: tuple[WireChoice | None, ...] = (None, "auto", "int8", "auto")
        for n in (256, 257):
            for wire in wires:
                before = _known(comm)["allreduce"]
                x = np.full(n, comm.rank + 1, np.float32)
                for _ in range(3):
                    assert comm.allreduce(x, wire=wire).tolist() == [3.0] * n
                found.append(_known(comm)["allreduce"] - before)
        return found

    assert ranks(2, body, table=table) == [[1, 1, 0, 0, 1, 0, 0, 0]] * 2


def test_no_more_are_kept_than_are_of_use() -> None:
    with collectives.init() as comm:
        for n in range(3000):
            comm.allreduce(np.ones(n, np.int8))
            comm.allgather(np.ones(n, np.int8))
        assert all(0 < _known(comm)[name] <= 1024 for name in ("allreduce", "allgather"))
        assert len(comm._calls.prepare._kept) <= 1024


def test_an_array_of_another_kind_goes_the_long_way() -> None:
    """In each pair the second call looks like the first but for its array's layout, and neither may be lost."""

    def body(comm: Communicator) -> None:
        locked = np.full(4, 7.0)
        locked.flags.writeable = False
        for _ in range(2):
            for x in (locked, np.full(4, 7.0)) if comm.rank == 0 else (np.zeros(4), np.zeros(4)):
                assert comm.broadcast(x, 0) is x
                assert np.array_equal(x, np.full(4, 7.0))
            received = np.zeros(4)
            if comm.rank == 0:
                comm.send(np.full(4, 3.0), 1)
                comm.send(np.zeros((4, 2))[:, 0], 1)
            else:
                assert np.array_equal(comm.recv(received, 0), np.full(4, 3.0))
                assert comm.recv(received, 0) is received and not received.any()
            for x in (np.asfortranarray(np.ones((2, 2))), np.ones((2, 2)), np.ones((2, 4))[:, ::2]):
                assert np.array_equal(comm.allgather(x), np.ones((2, 2, 2)))

    ranks(2, body)


def test_what_is_wrong_is_refused_after_the_same_call_was_right() -> None:
    def body(comm: Communicator) -> None:
        x, out = np.ones(4), np.zeros((2, 4))
        comm.allgather(x, out=out)
        locked = out.copy()
        locked.flags.writeable = False
        for wrong in (np.zeros(8), np.zeros((2, 4), np.float32), locked, np.zeros((4, 4))[:, :2].T, [0.0] * 8):
            with pytest.raises((TypeError, ValueError)):
                comm.allgather(x, out=wrong)
        both = np.zeros((3, 4))
        comm.allgather(x, out=both[:2])
        with pytest.raises(ValueError, match="memory"):
            comm.allgather(both[1], out=both[:2])
        comm.broadcast(x, 1)
        with pytest.raises(TypeError):
            comm.broadcast(x, True)
        with pytest.raises(ValueError, match="root"):
            comm.broadcast(x, 2**70)
        comm.reduce(x, "sum", 0, out=np.zeros(4))
        with pytest.raises((TypeError, ValueError)):
            comm.reduce(x, "sum", 0, out=np.zeros(5))
        comm.barrier()

    ranks(2, body)


def test_a_method_that_is_kept_keeps_its_communicator() -> None:
    comm = collectives.init()
    short = comm.allreduce
    shut = comm._shut
    del comm
    assert np.array_equal(short(np.ones(3)), np.ones(3))
    assert shut.alive
    del short
    assert not shut.alive


def test_a_class_has_methods_as_every_class_has() -> None:
    with collectives.init() as comm:
        assert np.array_equal(Communicator.allreduce(comm, np.ones(3)), np.ones(3))
        assert np.array_equal(Communicator.allreduce(comm, np.ones(3)), np.ones(3))
        with pytest.raises(TypeError):
            Communicator.allreduce()  # type: ignore[call-arg]
        with pytest.raises(AttributeError):
            Communicator.allreduce(3, np.ones(3))  # type: ignore[arg-type]

        class Derived(Communicator):
            pass

        assert Derived.allreduce is Communicator.allreduce
