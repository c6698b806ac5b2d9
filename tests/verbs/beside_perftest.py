"""Our link beside perftest, in one run on the same two devices: python -m tests.verbs.beside_perftest

Prints what `ib_write_bw` and `ib_send_lat` measure between rxe0 and rxe1, what the C++ loop of
tests/native/verbs/bench_verbs_link.cpp measures over our link, and the ratios. Each is run in turns, three times, and
the median counts. On soft-RoCE the figures say how much work our link adds, and nothing about hardware.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "build" / "native-release" / "tests" / "native" / "bench_verbs_link"
TURNS = 3


def perftest(program: str, *options: str) -> list[float]:
    """The last line of figures that perftest prints, between the devices rxe0 and rxe1."""
    common = [program, "-x", "1", "-F", *options]
    server = subprocess.Popen([*common, "-d", "rxe1"], stdout=subprocess.DEVNULL)
    time.sleep(1.0)  # it does not say when it listens
    try:
        done = subprocess.run([*common, "-d", "rxe0", "127.0.0.1"], check=True, capture_output=True, text=True)
    finally:
        server.wait(20)
    lines = [line for line in done.stdout.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)]
    return [float(word) for word in lines[-1].split()]


def ours() -> tuple[float, float]:
    text = subprocess.run([OURS], check=True, capture_output=True, text=True).stdout
    bandwidth, latency = (float(word) for word in re.findall(r": ([\d.]+)", text))
    return bandwidth, latency


def main() -> int:
    theirs_mb, theirs_us, our_mb, our_us = [], [], [], []
    for _ in range(TURNS):
        # bytes, iterations, peak MB/s, average MB/s, Mpps
        theirs_mb.append(perftest("ib_write_bw", "-s", "1048576", "-n", "100", "--report_gbits")[3] * 1000 / 8)
        # bytes, iterations, least, most, typical, average, deviation, 99 %, 99.9 %
        theirs_us.append(perftest("ib_send_lat", "-s", "8", "-n", "2000")[4])
        bandwidth, latency = ours()
        our_mb.append(bandwidth)
        our_us.append(latency)
    print(f"1 MiB one way: ours {our_mb} MB/s, ib_write_bw {theirs_mb}")
    print(f"8 bytes one way: ours {our_us} us, ib_send_lat {theirs_us}")
    share = statistics.median(our_mb) / statistics.median(theirs_mb)
    times = statistics.median(our_us) / statistics.median(theirs_us)
    print(f"bandwidth: {share:.2f} of ib_write_bw (at least 0.85); latency: {times:.2f} of ib_send_lat (at most 1.5)")
    return 0 if share >= 0.85 and times <= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
