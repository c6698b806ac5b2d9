"""A rank that cannot import CuPy: its arrays are those of `comm.empty`, and of a library that exports them by DLPack.

It uses the stand-in for the driver, whose memory the host can read.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

import collectives
from collectives.arrays.on_device import DeviceArray
from tests.collectives.arrays.capsules import FLOAT32, Exporter

RANK = int(os.environ["COLLECTIVES_RANK"])
SIZE = int(os.environ["COLLECTIVES_SIZE"])


class Missing:
    """Finds no CuPy, where it is installed, too."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "cupy":
            raise ModuleNotFoundError("No module named 'cupy'")


def seen(x: DeviceArray) -> npt.NDArray[np.float32]:
    """The memory of `x`."""
    assert type(x) is DeviceArray
    memory = (ctypes.c_char * x.nbytes).from_address(x.__cuda_array_interface__["data"][0])
    return np.frombuffer(memoryview(memory), x.dtype).reshape(x.shape)


def new(comm: collectives.Communicator, device: int) -> DeviceArray:
    made = comm.empty((SIZE, 3), where=f"cuda:{device}")
    assert isinstance(made, DeviceArray)
    return made


def main() -> None:
    sys.meta_path.insert(0, Missing())
    device = int(os.environ.get("WORKER_DEVICE", RANK))
    with collectives.init(timeout=20.0) as comm:
        comm.prepare(device=device)
        x = new(comm, device)
        table = np.arange(SIZE * 3, dtype=np.float32).reshape(SIZE, 3)
        seen(x)[...] = table
        total = comm.allreduce(x)
        comm.synchronize()
        np.testing.assert_array_equal(seen(total), SIZE * table)
        exported = Exporter(x.__cuda_array_interface__["data"][0], x.shape, FLOAT32, device, x)
        out = new(comm, device)
        assert comm.allreduce(exported, out=out) is out
        comm.synchronize()
        np.testing.assert_array_equal(seen(out), SIZE * table)
        if comm.memory()["nccl"]:  # else ranks but the root get the rows in host memory
            for given in (x, exported):
                for row in (
                    comm.scatter(given if RANK == 0 else None),
                    comm.scatterv(given if RANK == 0 else None, [1] * SIZE),
                ):
                    comm.synchronize()
                    np.testing.assert_array_equal(seen(row).reshape(3), table[RANK])
        assert "cupy" not in sys.modules


if __name__ == "__main__":
    main()
