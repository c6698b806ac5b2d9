"""Calls that are captured into a graph, and `prepare`."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np

from collectives import OpTimeout
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, engines, start
from tests.collectives.cuda.runs_on import ON_STAND_IN, RANK, SIZE, Gate, Stream, cupy

REPLAYS = 1000 if not ON_STAND_IN else 100


@case
def captured() -> None:
    """A graph of several calls gives the right results at each replay, also where one rank is late."""
    with start() as comm:
        comm.prepare("allreduce", "allgather", "send", "recv")
        stream = Stream()
        x, y = cupy.asarray(np.zeros(4, np.float32)), cupy.asarray(np.zeros(4, np.float32))
        every, got = cupy.asarray(np.zeros((SIZE, 4), np.float32)), cupy.asarray(np.zeros(4, np.float32))
        small = cupy.asarray(np.zeros(4, np.int16))  # which NCCL does not reduce
        with stream:
            before = len(engines(comm))
            stream.begin_capture()
            assert comm.allreduce(x, out=y) is y
            assert comm.allgather_async(x, out=every).done()  # it is in the graph, and runs at each launch
            comm.sendrecv(x, 1 - RANK, got, 1 - RANK)
            if ON_STAND_IN:  # CuPy itself refuses to allocate
                with raises(ValueError, "give out="):
                    comm.allreduce(x)
            for array, op in ((small, "sum"), (x, np.add)):
                with raises(ValueError, "captured", "host memory"):
                    comm.allreduce(array, op)
            with raises(ValueError, "captured", "host memory"):
                comm.scan(x)
            with raises(ValueError, "before the graph is launched"):
                comm.synchronize(stream)
            graph = stream.end_capture()
            assert len(engines(comm)) == before + 4  # a message sent, and one received
            for replay in range(REPLAYS):
                x.set(np.full(4, replay + RANK, np.float32))
                if replay == 10 and RANK == 1:
                    time.sleep(0.2)
                graph.launch(stream)
                comm.synchronize(stream)
                np.testing.assert_array_equal(y.get(), np.full(4, 2.0 * replay + 1))
                np.testing.assert_array_equal(every.get(), [[replay + r] * 4 for r in range(SIZE)])
                np.testing.assert_array_equal(got.get(), np.full(4, replay + 1 - RANK))
            np.testing.assert_array_equal(comm.allreduce(x, out=y).get(), np.full(4, 2.0 * replay + 1))
        assert {o["state"] for o in comm.dump()["operations"]} == {"done"}


@case
def replayed_alone() -> None:
    """A replay that another rank does not make: waiting for it ends in time, and closing frees the stream."""
    comm = start()
    comm.prepare()
    stream = Stream()
    x, y = cupy.asarray(np.zeros(4)), cupy.asarray(np.zeros(4))
    with stream:
        stream.begin_capture()
        comm.allreduce(x, out=y)
        graph = stream.end_capture()
        if RANK == 0:
            graph.launch(stream)
            with raises(OpTimeout, "synchronize waited 0.2 s"):
                comm.synchronize(stream, timeout=0.2)
    comm.barrier()
    comm.close()
    stream.synchronize()


@case
def graph_that_stays() -> None:
    """NCCL frees a communicator only after the graphs that hold its calls: closing returns all the same, in time."""
    comm = start()
    comm.prepare("allreduce")
    stream = Stream()
    x, y = cupy.asarray(np.ones(4)), cupy.asarray(np.zeros(4))
    with stream:
        stream.begin_capture()
        comm.allreduce(x, out=y)
        graph = stream.end_capture()
        graph.launch(stream)
        comm.synchronize(stream)
    begun = time.monotonic()
    comm.close()
    assert time.monotonic() - begun < 5.0
    np.testing.assert_array_equal(y.get(), np.full(4, float(SIZE)))
    del graph
    with start(name="after") as comm:
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, float(SIZE)))


@case
def captured_together() -> None:
    """A call in one stream waits, in the graph too, for the other stream in which its input is written."""
    with start() as comm:
        comm.prepare("allreduce")
        comm.allreduce(cupy.asarray(np.ones(4)))
        producer, stream = Stream(), Stream()
        x, y = cupy.asarray(np.ones(4)), cupy.asarray(np.zeros(4))
        producer.begin_capture()
        stream.begin_capture()
        with producer:  # the current stream, in which x counts as written
            comm.allreduce(x, out=y, stream=stream)
        graph, before = stream.end_capture(), producer.end_capture()
        graph.launch(stream)
        with raises(OpTimeout):
            comm.synchronize(stream, timeout=0.1)
        np.testing.assert_array_equal(y.get(), np.zeros(4))
        before.launch(producer)
        comm.synchronize(stream)
        np.testing.assert_array_equal(y.get(), np.full(4, float(SIZE)))


@case
def captured_beside() -> None:
    """While one stream is captured, calls in others that need memory do not end the capture."""
    with start() as comm:
        comm.prepare()
        stream, other = Stream(), Stream()
        x, y = cupy.asarray(np.ones(4)), cupy.asarray(np.zeros(4))
        spare = [cupy.asarray(np.zeros(4)) for _ in range(1100)]  # more signals than a page of them has
        stream.begin_capture()
        with other:
            works = [comm.allreduce_async(x, out=one) for one in spare]
        with stream:
            comm.allreduce(x, out=y)
            graph = stream.end_capture()
            graph.launch(stream)
            comm.synchronize(stream)
        for work in works:
            work.wait()
        np.testing.assert_array_equal(y.get(), np.full(4, float(SIZE)))
        np.testing.assert_array_equal(spare[-1].get(), y.get())


@case
def captured_elsewhere() -> None:
    """While one stream is captured, another communicator is made, called first and closed."""
    with start() as comm:
        comm.prepare()
        stream, other = Stream(), Stream()
        x, y = cupy.asarray(np.ones(4)), cupy.asarray(np.zeros(4))
        result = cupy.asarray(np.zeros(4))
        stream.begin_capture()
        with comm.dup() as twin:
            twin.allreduce(x, out=result, stream=other)
            twin.synchronize(other)
        with stream:
            comm.allreduce(x, out=y)
            graph = stream.end_capture()
            graph.launch(stream)
            comm.synchronize(stream)
        for one in (result, y):
            np.testing.assert_array_equal(one.get(), np.full(4, float(SIZE)))


@case
def held() -> None:
    """`synchronize` of a stream waits for all that is in it, not only for calls of the library."""
    with start() as comm:
        comm.prepare()
        stream, gate = Stream(), Gate()
        gate.hold(stream)
        with raises(OpTimeout):
            comm.synchronize(stream, timeout=0.05)
        gate.open()
        comm.synchronize(stream, timeout=10)


@case
def narrow() -> None:
    """Reductions of 8-bit floats, which only NCCL has."""
    with start() as comm:
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            x = cupy.asarray(np.array([1.0, 1.5, -2.0]).astype(dtype))
            result = comm.allreduce(x).get()
            assert result.dtype == dtype
            np.testing.assert_array_equal(result.astype(np.float32), [2.0, 3.0, -4.0])
            np.testing.assert_array_equal(comm.allreduce(x, "avg").get().astype(np.float32), [1.0, 1.5, -2.0])
        with raises(TypeError, "no meaning"):
            comm.allreduce(x, "bor")


@case
def narrow_refused() -> None:
    """The same where NCCL is too old: an error, before anything is sent, that says which version has it."""
    with start() as comm:
        with raises(TypeError, "float8_e5m2", "2.24.0", "float32"):
            comm.allreduce(cupy.asarray(np.ones(3, ml_dtypes.float8_e5m2)))
        np.testing.assert_array_equal(comm.allgather(cupy.asarray(np.ones(1, np.int16))).get(), np.ones((SIZE, 1)))
