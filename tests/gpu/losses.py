"""Kills one of two ranks in the middle of operations again and again.

    python tests/gpu/losses.py leader|nccl COUNT             # by SIGKILL
    python tests/gpu/losses.py leader|nccl COUNT --silent    # by SIGSTOP: its connections stay, and say nothing

The surviving process stays. It has to raise PeerLost, use its device, and go on alone. The next rank to be killed
starts while the one before it still lives. Prints a line for each attempt; the exit code is 1 if one has failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import cupy
import numpy as np

import collectives
from collectives import PeerLost

HOME: Final = Path(__file__).parents[2]
BARS: Final = {signal.SIGKILL: 2.0, signal.SIGSTOP: 12.0}  # seconds
LARGE: Final = 4 << 20  # elements
ISSUED: Final = 20


def begin(folder: str, rank: int, transport: str) -> tuple[Any, Any]:
    comm = collectives.init(f"file://{folder}/store", rank=rank, size=2, transport=transport, timeout=60.0)
    x = cupy.ones(LARGE, cupy.float32)
    comm.allreduce(x, "max", out=x)
    comm.synchronize()
    comm.barrier()
    return comm, x


def be_killed(transport: str, by: signal.Signals) -> None:
    cupy.cuda.Device(0).use()
    cupy.ones(1).sum()  # what takes long comes first
    folder = sys.stdin.readline().strip()
    comm, x = begin(folder, 1, transport)
    for _ in range(ISSUED):
        comm.allreduce(x, "max", out=x)
    Path(folder, "died").write_text(str(time.monotonic()))
    os.kill(os.getpid(), by)


def survive(folder: str, transport: str) -> float:
    """Seconds from the death to the error. Raises AssertionError if anything else happens."""
    comm, x = begin(folder, 0, transport)
    try:
        try:
            for _ in range(10 * ISSUED):
                comm.allreduce(x, "max", out=x)
            comm.synchronize()
        except PeerLost as error:
            raised, lost = time.monotonic(), tuple(error.ranks)
        else:
            raise AssertionError("no error was raised")
        assert lost == (1,), f"another rank than 1 was named: {lost}"
        took = raised - float(Path(folder, "died").read_text())
        cupy.cuda.get_current_stream().synchronize()
    finally:
        comm.close()
    with collectives.init("memory://alone", rank=0, size=1, transport=transport) as alone:
        np.testing.assert_array_equal(alone.allreduce(cupy.arange(3.0)).get(), [0, 1, 2])
    return took


def main(transport: str, count: int, by: signal.Signals) -> int:
    bar = BARS[by]
    command = [sys.executable, __file__, "--killed", transport, by.name]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HOME), *sys.path]), "COLLECTIVES_CALIBRATE": "off"}
    cupy.cuda.Device(0).use()

    def victim() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, text=True)

    waiting, good, slowest = victim(), 0, 0.0
    try:
        for attempt in range(1, count + 1):
            doomed, waiting = waiting, victim()
            with tempfile.TemporaryDirectory() as folder:
                assert doomed.stdin is not None
                doomed.stdin.write(f"{folder}\n")
                doomed.stdin.flush()
                try:
                    took = survive(folder, transport)
                except Exception as error:
                    print(f"{transport}, attempt {attempt}: {type(error).__name__}: {error}", flush=True)
                    continue
                finally:
                    doomed.kill()
                    doomed.wait()
            slowest = max(slowest, took)
            good += took <= bar
            print(f"{transport}, {by.name}, attempt {attempt}: PeerLost after {took:.2f} s", flush=True)
    finally:
        waiting.kill()
        waiting.wait()
    print(
        f"{transport}, {by.name}: {good} of {count} within {bar:g} s, named the lost rank and went on alone; "
        f"slowest {slowest:.2f}"
    )
    return 0 if good == count else 1


if __name__ == "__main__":
    if sys.argv[1] == "--killed":
        be_killed(sys.argv[2], signal.Signals[sys.argv[3]])
    else:
        silent = "--silent" in sys.argv[3:]
        sys.exit(main(sys.argv[1], int(sys.argv[2]), signal.SIGSTOP if silent else signal.SIGKILL))
