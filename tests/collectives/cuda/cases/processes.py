"""Ranks that are threads of one process, and helpers that a rank forks."""

from __future__ import annotations

import os
import threading
import time

import numpy as np

import collectives
from collectives import CollectiveError
from collectives.native import _engine
from tests.collectives.cuda.cases.common import SIZE, Device, Stream, case, cupy, engines, start

_MOST = 3


@case
def threads() -> None:
    """Each has a device of its own, or all are on the only one."""
    devices = len(_engine.cuda_devices())
    count = max(2, min(devices, _MOST))
    wrong: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            with (
                Device(number % devices),
                Stream(non_blocking=True) as stream,
                collectives.init("memory://threads", rank=number, size=count, timeout=20.0) as comm,
            ):
                x, y = (cupy.asarray(np.full(1000, value, np.float32)) for value in (number + 1, 0))
                for _ in range(5):
                    comm.allreduce(x, out=y)
                    np.testing.assert_array_equal(y.get(), np.full(1000, count * (count + 1) / 2))
                comm.synchronize(stream)
                print(f"thread {number} on device {number % devices}: {engines(comm)[-1]}")
        except BaseException as error:
            wrong.append(error)

    running = [threading.Thread(target=rank, args=(number,)) for number in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if wrong:
        raise wrong[0]


@case
def forked() -> None:
    """A helper that is forked between calls uses no CUDA, and cannot use the communicator; the calls go on."""
    with start() as comm:
        x = cupy.asarray(np.ones(4, np.float32))
        for i in range(3):
            comm.allreduce(x, out=x)
            helper = os.fork()
            if helper == 0:
                os._exit(_help(comm))
            comm.allreduce(x, out=x)  # while the helper lives
            assert os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == 0
            np.testing.assert_array_equal(x.get(), np.full(4, float(SIZE) ** (2 * i + 2)))


def _help(comm: collectives.Communicator) -> int:
    time.sleep(0.1)
    for call in (lambda: comm.allreduce(np.ones(2)), comm.synchronize, comm.barrier):
        try:
            call()
        except CollectiveError as error:
            if "forked" not in str(error):
                return 2
        else:
            return 1
    return 0
