"""Which engine runs a call, and what says why."""

from __future__ import annotations

import os

import numpy as np

import collectives
from collectives import TransportUnavailable
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.led.common import array, case, last_engine, start
from tests.collectives.cuda.runs_on import RANK, SIZE, Device


@case
def chosen() -> None:
    """Ranks that share a device are led although NCCL is there; `explain` says so, and what is not led."""
    with start() as comm:
        x = array(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) == "leader"
        text = comm.explain("allreduce", 1024)
        assert "on CUDA     leader: one rank's kernel" in text and "device=shared" in text, text
        assert ", on device 0" in text and "MPS         no control pipe" in text, text
        text = comm.explain("scan", 1024)
        assert "on CUDA     staging" in text and "not         leader: it does not run scan" in text, text
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="ring").get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) != "leader"
        np.testing.assert_array_equal(comm.scan(x).get(), np.full(4, RANK + 1.0))
        plan = comm.allreduce_plan(x, out=x)
        assert plan() is x
        np.testing.assert_array_equal(x.get(), np.full(4, SIZE * 1.0))
        with comm.group():
            total = comm.allreduce(x)
            work = comm.allreduce_async(x, "max")
        np.testing.assert_array_equal(total.get(), np.full(4, SIZE * SIZE * 1.0))
        np.testing.assert_array_equal(work.wait().get(), np.full(4, SIZE * 1.0))
        with raises(TypeError, "avg"):
            comm.allreduce(array(np.ones(3, bool)), "avg")


@case
def own_devices() -> None:
    """Ranks with devices of their own use NCCL, or a leader if that is asked for and devices reach each other."""
    Device(RANK).use()
    with collectives.init(timeout=30.0) as comm:
        x = array(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) == "nccl"
        if os.environ.get("STAND_IN_PEERS") == "0":
            with raises(ValueError, "cannot be reached"):
                comm.allreduce(x, algorithm="leader")
            return
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="leader").get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) == "leader"


@case
def host_refused() -> None:
    """Where only one engine may run, arrays in host memory are refused in every call."""
    with start(transport=os.environ["ONLY"]) as comm:
        good, host = array(np.ones(SIZE)), np.ones(SIZE)
        comm.allreduce(good)
        for call in (
            lambda: comm.allreduce(host),
            lambda: comm.scan(host),
            lambda: comm.exscan(host),
            lambda: comm.allreduce_many([host, host]),
            lambda: comm.allgatherv(host),
            lambda: comm.reduce_scatterv(host, [1] * SIZE),
            lambda: comm.scan_async(host),
            lambda: comm.send(host, (RANK + 1) % SIZE),
        ):
            with raises(TypeError, "in host memory", os.environ["ONLY"], 'transport="auto"'):
                call()
        if os.environ["ONLY"] == "leader":
            with raises(TransportUnavailable, "it does not run allgatherv"):
                comm.allgatherv(good)
        comm.barrier()
        np.testing.assert_array_equal(comm.allreduce(good).get(), np.full(SIZE, SIZE * 1.0))


@case
def unable() -> None:
    """A rank that cannot take part: all ranks go through host memory, and say why."""
    with start() as comm:
        np.testing.assert_array_equal(comm.allreduce(array(np.ones(4))).get(), np.full(4, SIZE * 1.0))
        assert last_engine(comm) != "leader"
        text = comm.explain("allreduce", 64)
        assert os.environ["WHY"] in text, text
