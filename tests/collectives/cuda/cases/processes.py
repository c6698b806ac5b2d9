"""Ranks that are threads of one process, and helpers that a rank forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np

import collectives
from collectives import CollectiveError
from collectives.native import _engine
from tests.collectives.cuda.cases.common import case, engines, start
from tests.collectives.cuda.runs_on import SIZE, Device, Stream, cupy, driver

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
def threads_with_a_leader() -> None:
    """Ranks with devices of their own that reach each other; some of their memory has no peer access."""
    kinds = ("handle", "descriptor", "none")

    def rank(number: int, comm: collectives.Communicator) -> None:
        for kind in kinds:
            driver.kind = kind
            for root in range(_MOST):
                x = cupy.asarray(np.full(1000, number + 1, np.float32))
                y = cupy.asarray(np.zeros(1000, np.float32))
                comm.allreduce(x, out=y)
                np.testing.assert_array_equal(y.get(), np.full(1000, _MOST * (_MOST + 1) / 2))
                comm.broadcast(x, root=root)
                np.testing.assert_array_equal(x.get(), np.full(1000, root + 1))
            assert engines(comm)[-1] == "leader"
            comm.synchronize()
            comm.barrier()

    _together(_MOST, rank)


def _together(count: int, body: Callable[[int, collectives.Communicator], None]) -> None:
    """Run `body` on `count` ranks, which are threads with a device each."""
    wrong: list[BaseException] = []

    def run(number: int) -> None:
        try:
            name = f"memory://threads-{count}"
            with (
                Device(number),
                Stream(non_blocking=True),
                collectives.init(name, rank=number, size=count, timeout=20.0) as comm,
            ):
                body(number, comm)
        except BaseException as error:
            wrong.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(count)]
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
