"""Ranks that do not agree, are late, give up, or die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import collectives
from collectives import Aborted, DesyncError, OpTimeout, PeerLost
from collectives.native import _engine
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.led.common import array, case, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Stream, cupy

SOON = 2.0  # seconds in which survivors name a rank that was killed


@case
def different() -> None:
    """Ranks that make different calls learn it, and no kernel runs."""
    comm = start(timeout=30.0)
    comm.allreduce(array(np.ones(4)))
    begun = time.monotonic()
    with raises(DesyncError, "4 elements", "40000 elements"):
        comm.allreduce(array(np.ones(40000 if RANK else 4)))
        comm.synchronize()
        comm.barrier()
    assert time.monotonic() - begun < 5.0
    comm.close()


@case
def late() -> None:
    """A rank that makes no call is named at the deadline; the stream is free afterwards."""
    comm = start(timeout=1.5)
    x = array(np.ones(4))
    comm.allreduce(x)
    comm.synchronize()
    if RANK == 1:
        time.sleep(4)
        with raises(OpTimeout, "rank 1", "not begun"):
            comm.allreduce(x)
    else:
        work = comm.allreduce_async(x)
        with raises(OpTimeout, "rank 1", "not begun"):
            work.wait()
        cupy.cuda.get_current_stream().synchronize()
        with raises(OpTimeout, "rank 1"):
            comm.allreduce(x)
    comm.close()


@case
def fenced() -> None:
    """A rank that gives up while a kernel writes its output keeps what it writes there itself."""
    comm = start(timeout=60.0)
    count = 4000  # elements, 16 in a tile, each of which takes a while
    x, y = array(np.ones(count, np.float32)), array(np.zeros(count, np.float32))
    comm.allreduce(array(np.ones(4, np.float32)))
    comm.synchronize()
    comm.barrier()
    if RANK == 1:
        work = comm.allreduce_async(x, out=y)
        while not y.peek().any():
            time.sleep(0.001)
        comm.close()
        with raises(Aborted, "closed"):
            work.wait()
        assert not y.peek().all(), "the kernel had ended before"
        y.fill(7.0)
        time.sleep(0.7)
        late_writes = int((y.peek() != 7.0).sum())
        assert late_writes <= 16, f"{late_writes} elements were written later"  # the tile that was under way
    else:
        with raises(PeerLost, "rank 1"):
            comm.allreduce(x, out=y)
            comm.synchronize()
            comm.barrier()
        comm.close()


def _survive(comm: collectives.Communicator, begin: Callable[[], Any], lost: int) -> None:
    """Raise PeerLost within the bar, use the device, and go on alone."""
    begun = time.monotonic()
    with raises(PeerLost, f"rank {lost}"):
        begin()
        comm.synchronize()
    took = time.monotonic() - begun
    print(f"raised after {took:.2f} s")
    assert took < SOON + 1.0, took  # of which the other rank needs up to a second to die
    cupy.cuda.get_current_stream().synchronize()
    comm.close()
    with collectives.init("memory://alone", rank=0, size=1, transport="leader") as new:
        np.testing.assert_array_equal(new.allreduce(array(np.arange(3.0))).get(), [0, 1, 2])


@case
def killed() -> None:
    """The rank KILLED dies in the middle of calls: the leader, or another."""
    lost = int(os.environ["KILLED"])
    comm = start(timeout=60.0)
    x = array(np.ones(4))
    comm.allreduce(x)
    comm.barrier()
    if lost == RANK:
        comm.allreduce_async(x)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    _survive(comm, lambda: [comm.allreduce_async(x) for _ in range(50)], lost)


@case
def killed_in_replay() -> None:
    """The rank KILLED dies while graphs are replayed, of which no rank keeps a record."""
    lost = int(os.environ["KILLED"])
    comm = start(timeout=60.0)
    comm.prepare("allreduce")
    x, y, stream = array(np.ones(4)), array(np.zeros(4)), Stream()
    with stream:
        stream.begin_capture()
        comm.allreduce(x, out=y)
        graph = stream.end_capture()
        graph.launch(stream)
        comm.synchronize(stream)
        np.testing.assert_array_equal(y.get(), np.full(4, SIZE * 1.0))
        comm.barrier()
        if lost == RANK:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(40):
            graph.launch(stream)
        if "KNOWN" in os.environ:  # the rank is known to be lost before anybody waits for the stream
            with raises(PeerLost, f"rank {lost}"):
                comm.barrier()
        begun = time.monotonic()
        with raises(PeerLost, f"rank {lost}"):
            comm.synchronize(stream)
        assert time.monotonic() - begun < SOON + 1.0
        stream.synchronize()
    del graph
    comm.close()


@case
def killed_while_meeting() -> None:
    comm = start(timeout=60.0)
    comm.barrier()
    if RANK == 1:
        _engine.LeaderMember.meet = _die  # type: ignore[method-assign, assignment]
        comm.allreduce(array(np.ones(4)))
    _survive(comm, lambda: comm.allreduce(array(np.ones(4))), 1)


def _die(*_: Any) -> Any:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
