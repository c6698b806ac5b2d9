"""Which engine runs a call, and what says why."""

from __future__ import annotations

import os

import numpy as np

import collectives
from collectives import TransportUnavailable
from tests.collectives.cuda.by_name import raises
from tests.collectives.cuda.cases.common import case, engines, start
from tests.collectives.cuda.runs_on import RANK, Device, cupy


@case
def explained() -> None:
    with start() as comm:
        assert "on CUDA     nccl: every rank" in comm.explain("allreduce", 1024)
        text = comm.explain("allreduce", 1024, "int16")  # ranks have not compared their devices yet
        assert "on CUDA     leader" in text and "not         nccl: NCCL has no int16" in text, text
        assert "NCCL does not run scan" in comm.explain("scan", 1024)
        comm.allreduce(cupy.asarray(np.ones(3)))
        text = comm.explain("allreduce", 1024, "int16")
        assert "on CUDA     staging" in text and "not         nccl: NCCL has no int16" in text, text
        assert "not         leader: the devices of ranks 0 and 1 cannot be reached from each other" in text, text
        assert f", on device {RANK}" in comm.explain("allreduce", 1024)


@case
def asked() -> None:
    """What the table and arguments choose."""
    with start(table=os.environ.get("TABLE")) as comm:
        x = cupy.asarray(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, 2.0))
        assert engines(comm)[-1] != "nccl"
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="nccl").get(), np.full(4, 2.0))
        assert engines(comm)[-1] == "nccl"
        np.testing.assert_array_equal(comm.allreduce(x, algorithm="ring").get(), np.full(4, 2.0))
        assert engines(comm)[-1] == "nccl"
        with raises(ValueError, "cannot run this call", "no int16"):
            comm.allreduce(cupy.asarray(np.ones(2, np.int16)), algorithm="nccl")


@case
def deterministic() -> None:
    with start(deterministic=True) as comm:
        np.testing.assert_array_equal(comm.allreduce(cupy.asarray(np.ones(4))).get(), np.full(4, 2.0))
        assert "nccl" not in engines(comm)
        assert "deterministic" in comm.explain("allreduce", 64)


@case
def shared_device() -> None:
    """Two ranks on one device that cannot be led: through host memory, and all ranks say why."""
    Device(0).use()
    with collectives.init(timeout=20.0) as comm:
        x = cupy.asarray(np.ones(4))
        np.testing.assert_array_equal(comm.allreduce(x).get(), np.full(4, 2.0))
        assert engines(comm)[-1] != "nccl"
        assert "use one device" in comm.explain("allreduce", 64)
    second = collectives.init(timeout=20.0, transport="nccl", name="second")
    with raises(TransportUnavailable, "use one device", "CUDA_VISIBLE_DEVICES"):
        second.allreduce(x)
    second.close()


@case
def refused() -> None:
    """NCCL cannot be used on some rank: all go through host memory, and say why."""
    with start() as comm:
        np.testing.assert_array_equal(comm.allreduce(cupy.asarray(np.ones(4))).get(), np.full(4, 2.0))
        assert "nccl" not in engines(comm)
        text = comm.explain("allreduce", 64)
        assert os.environ["WHY"] in text, text


@case
def refused_alone() -> None:
    """The same where nothing else may run: all ranks raise the same."""
    with raises(TransportUnavailable, os.environ["WHY"]), start(transport="nccl") as comm:
        comm.allreduce(cupy.asarray(np.ones(4)))


def _communicator(comm: collectives.Communicator) -> int:
    streams = comm._runner.streams
    assert streams is not None and streams._member is not None
    return streams._member.communicator


@case
def limited() -> None:
    """What bounds NCCL's memory, and what shows it."""
    with start() as comm:
        assert comm.memory()["nccl"] == 0
        comm.prepare()
        assert comm.memory()["nccl"] == int(os.environ["BLOCKS"]) << 20
        with comm.dup() as twin:
            np.testing.assert_array_equal(twin.allreduce(cupy.asarray(np.ones(4))).get(), np.full(4, 2.0))
            shared = os.environ.get("COLLECTIVES_NCCL_SHARE") == "1"
            assert (_communicator(twin) == _communicator(comm)) == shared
        np.testing.assert_array_equal(comm.allreduce(cupy.asarray(np.ones(4))).get(), np.full(4, 2.0))
    assert comm.memory()["nccl"] == 0
