"""Ranks that do not agree, do not come, or die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import collectives
from collectives import Aborted, DesyncError, OpTimeout, PeerLost
from collectives.calls.streamed import StreamCalls
from collectives.core import nccl as core_nccl
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, start
from tests.collectives.cuda.runs_on import ON_STAND_IN, RANK, Gate, Stream, cupy

SOON = 2.0  # seconds in which survivors name a rank that was killed


@case
def late() -> None:
    """A rank that makes no call is named at the deadline; the stream is free afterwards."""
    comm = start(timeout=1.5)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x)
    comm.synchronize()
    if RANK == 1:
        time.sleep(4)
        with raises(OpTimeout, "rank 1", "not begun"):
            comm.allreduce(x)
    else:
        begun = time.monotonic()
        work = comm.allreduce_async(x)
        with raises(OpTimeout, "rank 1", "not begun", "allreduce(sum, float64, 4 elements)"):
            work.wait()
        assert 1.0 < time.monotonic() - begun < 4.0
        cupy.cuda.get_current_stream().synchronize()
        for again in (lambda: comm.allreduce(x), comm.synchronize, lambda: comm.allreduce(np.ones(2))):
            with raises(OpTimeout, "rank 1"):
                again()
        failed = [o for o in comm.dump()["operations"] if o["state"] == "failed"]
        assert [o["engine"] for o in failed] == ["nccl"]
    comm.close()


@case
def killed_with_a_graph() -> None:
    """A rank dies while a graph holds calls, so that NCCL's abort does not return: the other learns of it in time."""
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
        comm.barrier()
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        with raises(PeerLost, "rank 1"):
            comm.allreduce_async(x).wait()
        assert time.monotonic() - begun < SOON
        stream.synchronize()
    comm.close()
    del graph


@case
def silent() -> None:
    """A rank that stops, with its connections open, is lost within twelve seconds."""
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x)
    comm.synchronize()
    comm.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    begun = time.monotonic()
    with raises(PeerLost, "rank 1"):
        comm.allreduce_async(x).wait()
    assert time.monotonic() - begun < 12.0
    cupy.cuda.get_current_stream().synchronize()
    comm.close()


@case
def never_first() -> None:
    """A rank that never makes the first call, in which connections are made, is named, too."""
    comm = start(timeout=1.5)
    if RANK == 1:
        time.sleep(4)
    else:
        with raises(OpTimeout, "rank 1"):
            comm.allreduce(cupy.asarray(np.ones(4)))
    comm.close()


@case
def different() -> None:
    """Ranks that make different calls learn it, although NCCL compares nothing: here one waits for the other."""
    comm = start(timeout=30.0)
    comm.allreduce(cupy.asarray(np.ones(4)))
    begun = time.monotonic()
    with raises(DesyncError, "4 elements", "40000 elements"):
        comm.allreduce(cupy.asarray(np.ones(40000 if RANK else 4)))
        comm.synchronize()
        comm.barrier()
    assert time.monotonic() - begun < 5.0
    comm.close()


@case
def different_unseen() -> None:
    """The same where both complete: the next call on the host shows it."""
    comm = start(timeout=30.0)
    comm.allreduce(cupy.asarray(np.ones(4)))
    with raises(DesyncError):
        comm.allreduce(cupy.asarray(np.ones(4)), "max" if RANK else "sum")
        comm.synchronize()
        comm.barrier()
    comm.close()


@case
def different_memory() -> None:
    comm = start(timeout=30.0)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x)
    begun = time.monotonic()
    with raises(DesyncError):
        comm.allreduce(x if RANK == 0 else np.ones(4))
        comm.synchronize()
    assert time.monotonic() - begun < 5.0
    comm.close()


def _survive(comm: collectives.Communicator, begin: Callable[[], Any]) -> None:
    """Raise PeerLost within the bar, use the device, and go on alone."""
    begun = time.monotonic()
    with raises(PeerLost, "rank 1"):
        begin()
        comm.synchronize()
    print(f"raised after {time.monotonic() - begun:.2f} s")
    assert time.monotonic() - begun < SOON + 1.0  # of which the other rank needs up to a second to die
    cupy.cuda.get_current_stream().synchronize()
    comm.close()
    with collectives.init("memory://alone", rank=0, size=1, transport="nccl") as new:
        np.testing.assert_array_equal(new.allreduce(cupy.asarray(np.arange(3.0))).get(), [0, 1, 2])


def _die(*_: Any) -> Any:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


@case
def killed_in_operation() -> None:
    _killed("auto")


@case
def killed_in_schedule() -> None:
    """The same where the call is a schedule of this library, of several groups of messages."""
    _killed("ring")


def _killed(algorithm: str) -> None:
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x, algorithm=algorithm)
    comm.barrier()
    if RANK == 1:
        if ON_STAND_IN:
            gate = Gate()
            gate.hold(cupy.cuda.get_current_stream())
            comm.allreduce_async(x, algorithm=algorithm)  # its stream never comes to it
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    _survive(comm, lambda: [comm.allreduce_async(x, algorithm=algorithm) for _ in range(50)])


@case
def killed_before_first_call() -> None:
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.barrier()
    if RANK == 1:
        # As far as NCCL's communicator is made, and not further.
        StreamCalls.issue = _die  # type: ignore[method-assign, assignment]
        comm.allreduce(x)
    _survive(comm, lambda: comm.allreduce(x))


@case
def killed_while_forming() -> None:
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.barrier()
    if RANK == 1:
        core_nccl._unique_id = _die  # type: ignore[assignment]
        comm.allreduce(x)
    _survive(comm, lambda: comm.allreduce(x))


@case
def closed() -> None:
    """`close` aborts what is not complete, and does not wait for the other ranks."""
    comm = start(timeout=60.0)
    x = cupy.asarray(np.ones(4))
    comm.allreduce(x)
    comm.synchronize()
    comm.barrier()
    if RANK == 0:
        work = comm.allreduce_async(x)
        begun = time.monotonic()
        comm.close()
        assert time.monotonic() - begun < 5.0
        with raises(Aborted, "closed"):
            work.wait()
        cupy.cuda.get_current_stream().synchronize()
    else:
        time.sleep(1.5)  # rank 0 closes meanwhile
        with raises(PeerLost, "rank 0"):
            while True:
                comm.allreduce(x)
                comm.synchronize()
    comm.close()
