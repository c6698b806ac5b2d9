"""Failures in the middle of an operation over RDMA, many times: python -m tests.verbs.failing [--runs 50] [KIND…]

Three ranks reduce an array over and over; then rank 2 is killed, the path between the devices is cut, or an
interface goes down. All survivors have to raise the same PeerLost within 12 s. Then each fills its arrays with a
pattern, and watches them for a second: not one byte may change. The kinds are kill, path and down; the last two need
the VM of vm/boot.sh. With few `--elements` all messages are copied, and count as sent before they arrive. With `--jobs`
several groups of three run over the same devices, and meet the same failure; each counts as a run.

Exit status: 0 if every run held. One line for each run, and a summary.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.verbs import networks
from tests.verbs.programs import said, started

SIZE = 3
WITHIN = 12.0  # seconds until all survivors have raised
START = 120.0  # seconds for ranks to start, where the processor is emulated

LARGE = 5 << 18  # elements: messages are written to their destination
PROGRAM = """
n = int(os.environ["TEST_ELEMENTS"])
x = np.ones(n, dtype=np.float32)
out = np.empty_like(x)
comm.allreduce(x, out=out)
say("ready")
try:
    while True:
        comm.allreduce(x, out=out)
except collectives.PeerLost as error:
    at = time.monotonic()
    x.view(np.uint8)[:] = 0xA5
    out.view(np.uint8)[:] = 0x5A
    dirty = 0
    while time.monotonic() < at + 1:
        dirty += int((x.view(np.uint8) != 0xA5).sum()) + int((out.view(np.uint8) != 0x5A).sum())
    say({"at": at, "ranks": list(error.ranks), "error": str(error), "dirty": dirty})
os._exit(0)
"""


INJECTIONS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "kill": contextlib.nullcontext,
    "path": networks.cut_path,
    "down": lambda: networks.interface_down("veth1"),
}


def failed(kind: str, delay: float, elements: int = LARGE, jobs: int = 1) -> list[tuple[float, str]]:
    """For each of `jobs` groups: seconds until its last survivor has raised, and what is wrong, if anything is."""
    survivors = (0, 1) if kind == "kill" else (0, 1, 2)
    with contextlib.ExitStack() as stack:
        groups = []
        for _ in range(jobs):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            groups.append(stack.enter_context(started(PROGRAM, SIZE, folder, TEST_ELEMENTS=str(elements))))
        for ranks in groups:
            for rank in range(SIZE):
                assert said(ranks, rank) == "ready"
        time.sleep(delay)
        with INJECTIONS[kind]():
            began = time.monotonic()
            if kind == "kill":
                for ranks in groups:
                    ranks[2].kill()
            return [judged(kind, began, [said(ranks, rank) for rank in survivors]) for ranks in groups]


def judged(kind: str, began: float, ends: list[dict[str, Any]]) -> tuple[float, str]:
    """The same of one group, by what its survivors have said."""
    slowest = max(one["at"] for one in ends) - began
    named = {tuple(one["ranks"]) for one in ends}
    wrong = []
    if slowest > WITHIN:
        wrong.append(f"{slowest:.1f} s")
    if len(named) > 1 or not all(named) or (kind == "kill" and named != {(2,)}):
        wrong.append(f"ranks {sorted(named)}: {[one['error'] for one in ends]}")
    if any(one["dirty"] for one in ends):
        wrong.append(f"{[one['dirty'] for one in ends]} bytes changed after the error")
    return slowest, "; ".join(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", default=list(INJECTIONS), metavar="KIND")
    parser.add_argument("--runs", type=int, default=50, help="of each kind (default: %(default)s)")
    parser.add_argument("--elements", type=int, default=LARGE, help="of the arrays (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="groups that run at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    broken = 0
    for kind in options.kinds:
        times: list[float] = []
        while len(times) < options.runs:
            for slowest, wrong in failed(kind, dice.uniform(0, 0.5), options.elements, options.jobs):
                times.append(slowest)
                broken += bool(wrong)
                print(f"{kind} {len(times)}: {slowest:.2f} s {wrong or 'held'}", flush=True)
        print(f"{kind}: {len(times)} runs, slowest {max(times):.2f} s, median {sorted(times)[len(times) // 2]:.2f} s")
    print(f"{broken} runs did not hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
