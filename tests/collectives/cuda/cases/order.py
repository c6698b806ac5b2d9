"""The order of streams, plans, and communicators made from others."""

from __future__ import annotations

import numpy as np

from collectives import OpTimeout
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Gate, Stream, cupy, driver


@case
def order() -> None:
    """The call waits for nothing on the host; a held stream holds what is in it, and nothing else."""
    with start() as comm:
        held, free, gate = Stream(), Stream(), Gate()
        x = cupy.asarray(np.ones(4, np.float32))
        comm.allreduce(x)
        comm.synchronize()
        late = cupy.asarray(np.zeros(4, np.float32))
        gate.hold(held)
        work = comm.allreduce_async(x, out=late, stream=held)
        assert not work.done()
        with raises(OpTimeout, "still running"):
            work.wait(0.05)
        np.testing.assert_array_equal(comm.allreduce(np.full(3, RANK)), [1, 1, 1])  # on the host, after it
        with raises(OpTimeout, "synchronize waited", "1 of the operations"):
            comm.synchronize(timeout=0.05)
        comm.synchronize(free)  # nothing is in this stream
        gate.open()
        comm.synchronize(held)
        assert work.done()
        np.testing.assert_array_equal(late.get(), np.full(4, 2.0))
        # The current stream of the array's library is used, and a stream that is given waits for it.
        with free:
            second = Gate()
            second.hold(free)
            work = comm.allreduce_async(x, stream=held)
            assert not work.done()
            second.open()
            work.wait()
        # Calls in the background come first, so ranks number their calls equally.
        before = [comm.allreduce_async(np.full(1000, i)) for i in range(5)]
        result = comm.allreduce(x)
        np.testing.assert_array_equal(result.get(), np.full(4, 2.0))
        assert [int(w.wait()[0]) for w in before] == [0, 2, 4, 6, 8]
        sequences = [o["sequence"] for o in comm.dump()["operations"]]
        assert sequences == sorted(sequences)


@case
def plans() -> None:
    with start() as comm:
        x, y = cupy.asarray(np.full(4, RANK + 1.0)), cupy.asarray(np.zeros(4))
        plan = comm.allreduce_plan(x, out=y)
        for value in (1.0, 5.0):
            x.set(np.full(4, value))
            assert plan() is y
            np.testing.assert_array_equal(y.get(), np.full(4, 2 * value))
            comm.barrier()
        with raises(RuntimeError, "group() block"), comm.group():
            plan()


@case
def groups() -> None:
    """Communicators from others have a communicator of NCCL each, and free what they had."""
    with start() as comm:
        x = cupy.asarray(np.full(4, RANK + 1.0))
        comm.allreduce(x)
        comm.synchronize()
        before = driver.registered()
        for _ in range(3):
            with comm.dup() as other:
                np.testing.assert_array_equal(other.allreduce(x).get(), np.full(4, 3.0))
        pair = comm.split(0, key=-RANK)
        assert pair is not None and pair.rank == SIZE - 1 - RANK
        root = 0
        y = cupy.asarray(np.full(2, float(pair.rank)))
        pair.broadcast(y, root)
        np.testing.assert_array_equal(y.get(), [0.0, 0.0])
        pair.close()
        assert driver.registered() == before, (driver.registered(), before)
    assert driver.registered() == 0, driver.registered()
