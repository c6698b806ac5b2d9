"""The JSON file of a benchmark run: all measurements, and the conditions that are needed to judge and repeat the run.

Invariant: raw samples are kept, so any statistic can be computed again. The file is written in one atomic step, also if
the run is interrupted (then `complete` is false). The file contains no secrets: URLs of stores are left out.

In the following, s stands for seconds. A peer is another system, such as Gloo. A floor is a lower limit of the time,
measured on this machine. A ping shows whether the machine is in a fast or slow mode.

    {"format": "pycollectives bench", "version": 1, "complete": true, "started": ISO 8601, "seconds": s,
     "arguments": the plan, "command": [...], "group": {"ranks": [facts of each], "pairs": {transport: number},
     "outnumbered": bool}, "peers": {name: {package: version}},
     "results": [{"collective", "bytes", "count", "dtype", "op", "root", "asked", "algorithm",
       "trace": a model's name or "", "bucket": bytes or 0,
       "pings": [[before, after] of each round: {"flag": s one way or null, "link": s, "core": s}],
       "set_aside": [indexes of rounds that ratios leave out],
       "measurements": {"out-of-place" | "in-place" | a floor's or a peer's name:
         {"unsupported": reason} or
         {"wrong": elements or null, "iterations": n, "seconds": {"median", "mean", "min", "max", "p99"},
          "algbw": GB/s, "busbw": GB/s, "rank_medians": [s of each rank], "ours_over_this": ratio (not for ours),
          "rounds": [[s of the slowest rank in each iteration], ...]}}}],
     "memory": [...] with --memory only}
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from collectives.bench.hosts import Group
from collectives.bench.measure import Measurement, Row
from collectives.bench.plan import Plan

FORMAT: Final = "pycollectives bench"
VERSION: Final = 1


def document(
    plan: Plan,
    group: Group,
    peers: Mapping[str, Mapping[str, str]],
    rows: Sequence[Row],
    started: datetime,
    seconds: float,
    complete: bool,
) -> dict[str, Any]:
    """Everything about a run, as JSON values."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "complete": complete,
        "started": started.isoformat(),
        "seconds": round(seconds, 3),
        "arguments": asdict(plan),
        "group": {
            "ranks": [asdict(facts) for facts in group.ranks],
            "pairs": group.pairs,
            "outnumbered": group.outnumbered,
        },
        "peers": peers,
        "results": [_result(row) for row in rows],
    }


def write(path: str, value: dict[str, Any]) -> None:
    """Write `value` as JSON to the file `path`. An existing file is replaced in one atomic step. Raises: OSError."""
    folder = Path(path).resolve().parent
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".bench-", suffix=".json")
    try:
        with open(descriptor, "w") as file:
            json.dump(value, file)
            file.write("\n")
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _result(row: Row) -> dict[str, Any]:
    case = row.case
    return {
        "collective": case.collective,
        "bytes": case.nbytes,
        "count": case.count,
        "dtype": case.dtype,
        "op": case.op,
        "root": case.root,
        "asked": case.algorithm,
        "trace": case.trace,
        "bucket": case.bucket,
        "algorithm": row.algorithm,
        "pings": [[asdict(reading) for reading in pair] for pair in row.pings],
        "set_aside": row.set_aside,
        "measurements": {name: _measurement(row, m) for name, m in row.measurements.items()},
    }


def _measurement(row: Row, found: Measurement) -> dict[str, Any]:
    if found.unsupported:
        return {"unsupported": found.unsupported}
    times, case = found.times, row.case
    reported = {
        "wrong": found.wrong,
        "iterations": int(found.samples.size),
        "seconds": asdict(times),
        "algbw": case.algbw(times.median),
        "busbw": case.busbw(times.median),
        "rank_medians": found.ranks,
        "rounds": [[round(s, 9) for s in samples.tolist()] for samples in found.rounds],
    }
    if not found.is_ours:
        reported["ours_over_this"] = row.ratio(found)
    return reported
