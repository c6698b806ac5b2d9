"""One rank of a job between namespaces: what each host sends in one collective of 8 MiB, as the choice has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

import collectives
from collectives.bench.wire_rank import sent_bytes

NBYTES = 8 << 20  # of the larger of the two arrays
REPEATS = 3  # the fewest bytes count: a busy host's TCP now and then sends again what was only late


def main() -> None:
    with collectives.init(join_timeout=30, timeout=60) as comm:
        whole = np.ones((comm.size, NBYTES // 4 // comm.size), "f4")
        calls: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: comm.allreduce(whole),
            "reduce_scatter": lambda: comm.reduce_scatter(whole),
            "allgather": lambda: comm.allgather(whole[0]),
            "broadcast": lambda: comm.broadcast(whole),
            "reduce": lambda: comm.reduce(whole),
        }
        sent: dict[str, list[int]] = {name: [] for name in calls}
        for name in REPEATS * list(calls):
            comm.barrier()
            before = sent_bytes()
            comm.barrier()
            calls[name]()
            comm.barrier()
            sent[name].append(sent_bytes() - before)
            comm.barrier()
        print(json.dumps({name: min(found) for name, found in sent.items()}))


if __name__ == "__main__":
    main()
