"""What a rank that was stopped in the middle of a collective still writes once it is woken: nothing of another's.

Each round starts ranks that share memory, or have connections over TCP. All work on arrays from `Communicator.empty`
(or on ordinary ones) until one of them, the writer, is stopped. The others time out, fill their arrays anew and look at
them again after the writer was woken. Exits with 1 where any byte of theirs has changed.

    python -m tests.stress.late_write --rounds 30 --ranks 2
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import collectives

MARK = -7.0
_LIMIT = 60.0  # seconds for each thing that the others of a round have to do


def rank(
    folder: Path, number: int, size: int, call: str, elements: int, ordinary: bool, timeout: float, transport: str
) -> int:
    """One rank of a round: 0 if its arrays keep what it fills them with, else 1."""
    store = f"file://{folder}/store"
    with collectives.init(store, rank=number, size=size, transport=transport, timeout=timeout) as comm:
        make = np.empty if ordinary else comm.empty
        x, out = make(elements, "float32"), make(elements, "float32")
        x[:] = 1.0
        (folder / f"pid{number}").write_text(str(os.getpid()))
        try:
            while True:
                if call == "allreduce":
                    comm.allreduce(x, out=out)
                elif call == "in_place":
                    comm.allreduce(x, out=x)
                else:
                    comm.broadcast(out, root=0)
        except collectives.CollectiveError as error:
            x[:] = out[:] = MARK
            print(f"rank {number}: {type(error).__name__}", flush=True)
        (folder / f"filled{number}").touch()
        _wait_for(folder / "woken")
        changed = int((x != MARK).sum() + (out != MARK).sum())
        if changed:
            print(f"rank {number}: {changed * 4} bytes have changed", flush=True)
        return int(changed > 0)


def one_round(
    size: int, call: str, elements: int, ordinary: bool, timeout: float, transport: str, rng: random.Random
) -> bool:
    """Whether a rank's array was written to by the one that was stopped, rank 0."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = [call, str(elements), str(int(ordinary)), str(timeout), transport]
        command = [sys.executable, "-m", "tests.stress.late_write", "--rank"]
        ranks = [subprocess.Popen([*command, name, str(number), str(size), *given]) for number in range(size)]
        try:
            for number in range(size):
                _wait_for(folder / f"pid{number}")
            time.sleep(rng.uniform(0.02, 0.1))  # anywhere in a collective
            os.kill(ranks[0].pid, signal.SIGSTOP)
            for number in range(1, size):
                _wait_for(folder / f"filled{number}")
            os.kill(ranks[0].pid, signal.SIGCONT)
            _wait_for(folder / "filled0")  # it has ended what it was in the middle of
            (folder / "woken").touch()
            codes = [process.wait(_LIMIT) for process in ranks[1:]]
            return 1 in codes
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _LIMIT
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path.name} did not come")
        time.sleep(0.001)


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        folder, number, size, call, elements, ordinary, timeout, transport = sys.argv[2:]
        numbers = int(number), int(size), call, int(elements)
        return rank(Path(folder), *numbers, ordinary == "1", float(timeout), transport)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--call", choices=["allreduce", "in_place", "broadcast"], default="allreduce")
    parser.add_argument("--elements", type=int, default=4 << 20, help="of float32")
    parser.add_argument("--ordinary", action="store_true", help="arrays that are not from Communicator.empty")
    parser.add_argument("--timeout", type=float, default=0.5, help="seconds, of the ranks that are not stopped")
    parser.add_argument("--transport", choices=["shm", "tcp"], default="shm")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    found = [
        one_round(args.ranks, args.call, args.elements, args.ordinary, args.timeout, args.transport, rng)
        for _ in range(args.rounds)
    ]
    print(f"{sum(found)} of {args.rounds} rounds: {args.ranks} ranks, {args.call}, {args.elements} elements")
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
