"""Our links beside perftest, in one run on the same two devices: python -m tests.verbs.beside_perftest

Prints what `ib_write_bw` and `ib_send_lat` measure between rxe0 and rxe1, what the C++ loop of
tests/native/verbs/bench_verbs_link.cpp measures over our link, the time of an allreduce of 4 MiB by two ranks, and the
ratios. Each is run in turns, and the median counts. On soft-RoCE the figures say how much work our link adds, and
nothing about hardware.

Exit status: 0 if all ratios are within their limits. With --json, everything is written to a file, too.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.verbs.perftest import figures
from tests.verbs.programs import run

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "build" / "native-release" / "tests" / "native" / "bench_verbs_link"
REDUCED = 4 << 20  # bytes of each rank's array

ALLREDUCE = f"""
x = np.ones({REDUCED} // 4, np.float32)
out = np.empty_like(x)
times = []
for turn in range(22):
    comm.barrier()
    began = time.monotonic()
    comm.allreduce(x, out=out)
    times.append(time.monotonic() - began)
assert (out == size).all()
say(sorted(times[2:])[10])
comm.barrier()
comm.close()
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """What is measured in one turn: bandwidths in MB/s (10^6 bytes), times in microseconds."""

    our_bandwidth: float
    our_latency: float
    our_allreduce: float
    write_bw: float
    send_lat: float
    write_bw_both: float  # of both directions together


def bandwidth(*options: str) -> float:
    # bytes, iterations, peak, average, million messages a second
    return figures("ib_write_bw", "-s", "1048576", "-n", "100", "--report_gbits", *options)[3] * 1000 / 8


def latency() -> float:
    # bytes, iterations, least, most, typical, average, deviation, 99 %, 99.9 %
    return figures("ib_send_lat", "-s", "8", "-n", "2000")[4]


def our_link() -> tuple[float, float]:
    text = subprocess.run([OURS], check=True, capture_output=True, text=True).stdout
    found, one_way = (float(word) for word in re.findall(r": ([\d.]+)", text))
    return found, one_way


def our_allreduce() -> float:
    """Seconds: the median of the slower rank."""
    with tempfile.TemporaryDirectory() as folder:
        return max(float(said[0]) for said in run(ALLREDUCE, 2, Path(folder)))


def measure() -> Turn:
    write_bw, send_lat = bandwidth(), latency()
    our_bandwidth, our_latency = our_link()
    # With its usual 128 writes under way in each direction, and the usual timeout, soft-RoCE gives up.
    both = bandwidth("-b", "-t", "8", "-u", "18")
    return Turn(our_bandwidth, our_latency, our_allreduce() * 1e6, write_bw, send_lat, both)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    turns = []
    for number in range(options.turns):
        turns.append(measure())
        print(f"turn {number + 1}: {turns[-1]}", flush=True)

    def median(of: Callable[[Turn], float]) -> float:
        return statistics.median(map(of, turns))

    share = median(lambda turn: turn.our_bandwidth / turn.write_bw)
    times = median(lambda turn: turn.our_latency / turn.send_lat)
    # Each of two ranks sends, and receives, as many bytes as its array has: 2 (p - 1) / p of them.
    reduced = median(lambda turn: turn.our_allreduce * turn.write_bw_both / (2 * REDUCED))
    print(f"1 MiB one way: {share:.2f} of ib_write_bw (at least 0.85)")
    print(f"8 bytes one way: {times:.2f} of ib_send_lat (at most 1.5)")
    print(f"allreduce of 4 MiB: {reduced:.2f} of its bytes over ib_write_bw -b (at most 1.25)")
    if options.json:
        ratios = {"write_bw": share, "send_lat": times, "allreduce": reduced}
        options.json.write_text(json.dumps({"turns": [asdict(turn) for turn in turns], "ratios": ratios}, indent=1))
    return 0 if share >= 0.85 and times <= 1.5 and reduced <= 1.25 else 1


if __name__ == "__main__":
    sys.exit(main())
