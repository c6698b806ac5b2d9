"""One rank's part of `collectives.bench.wire`: times allreduce, and counts the bytes that leave this host.

Invariant: all elements of a result are checked, once for each size, algorithm and number of sockets, before timing.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

import collectives
from collectives.algorithms.registry import algorithms, get
from collectives.arrays.wire import format_of
from collectives.bench.loop import sample
from collectives.bench.sockets import Ring
from collectives.schedule.rounding import roundings

_WRITE: Final = 256 << 10


def main() -> None:
    """The main function of one rank's process: measure collectives, and print times and sent bytes as JSON.

    The first command-line argument says, as JSON, what to measure.
    """
    plan: dict[str, Any] = json.loads(sys.argv[1])
    with collectives.init(timeout=600) as comm, contextlib.ExitStack() as stack:
        groups = {
            count: comm._child(0, comm.rank, f"sockets{count}", replace(comm._origin.policy, sockets=count))
            for count in dict.fromkeys(plan["sockets"])
        }
        cases = [
            (size, name, group, None if sent_as == "float32" else sent_as)
            for size, name, count, sent_as in product(
                plan["sizes"], plan["algorithms"], plan["sockets"], plan["formats"]
            )
            if (group := groups[count]) is not None
        ]
        found: list[dict[str, Any]] = [
            {"seconds": [], "sent": _check(group, size, name, wire)} for size, name, group, wire in cases
        ]
        x, out = (comm.empty(max(plan["sizes"]) // 4) for _ in range(2))
        x.fill(comm.rank)
        limits: list[dict[str, Any]] = []
        if plan["limits"]:
            ring = stack.enter_context(contextlib.closing(Ring(comm, plan["addresses"])))
            limits = [{"seconds": [], "call": _go_round(ring, nbytes)} for nbytes in plan["limits"]]
        for _ in range(plan["repeats"]):
            for limit in limits:
                limit["seconds"].extend(sample(limit["call"], comm.barrier, 1).tolist())
            for (size, name, group, wire), case in zip(cases, found, strict=True):
                part = slice(0, size // 4)
                more = {} if wire is None else {"wire": wire}
                call = partial(group.allreduce, x[part], out=out[part], algorithm=name, **more)
                case["seconds"].extend(sample(call, group.barrier, 1).tolist())
    print(json.dumps({"cases": found, "limits": [limit["seconds"] for limit in limits]}))


def _go_round(ring: Ring, nbytes: int) -> Callable[[], None]:
    """Returns a function that sends `nbytes` bytes to the next rank and receives as many from the previous rank."""
    data, into = bytes(nbytes), bytearray(nbytes)
    return partial(ring.exchange, data, into, _WRITE)


def _check(comm: collectives.Communicator, size: int, name: str, wire: Any) -> int:
    """Check one allreduce of `size` bytes by algorithm `name`; returns the bytes that this host sent meanwhile."""
    x = np.arange(size // 4, dtype="float32") % 97 + comm.rank
    expected = comm.size * (np.arange(size // 4) % 97) + sum(range(comm.size))
    comm.barrier()
    before = sent_bytes()
    out = comm.allreduce(x, algorithm=name, wire=wire)
    comm.barrier()
    after = sent_bytes()
    error = 0.0 if wire is None else _rounding(name, comm.size, wire) * float(expected.max(initial=0))
    if not np.abs(out - expected).max(initial=0) <= error:
        raise SystemExit(f"allreduce {name} of {size} bytes is wrong on rank {comm.rank}")
    return after - before


def _rounding(name: str, size: int, wire: str) -> float:
    """The largest error of a sum in that format, relative to the sum of the largest numbers."""
    known = algorithms("allreduce", size) if name == "auto" else (get("allreduce", name),)
    return float((1 + format_of(wire).rounding) ** max(roundings(algorithm, size) for algorithm in known) - 1)


def sent_bytes() -> int:
    """Return how many bytes this host has sent over all network interfaces except loopback."""
    interfaces = (path for path in Path("/sys/class/net").iterdir() if path.name != "lo")
    return sum(int((path / "statistics" / "tx_bytes").read_text()) for path in interfaces)


if __name__ == "__main__":
    main()
