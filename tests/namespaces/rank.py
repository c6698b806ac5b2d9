"""One rank of a job between namespaces: sums of several sizes, then what it was linked by."""

from __future__ import annotations

import json

import numpy as np

import collectives


def main() -> None:
    with collectives.init(join_timeout=20, timeout=30) as comm:
        for count in (1, 3, 1000, 300_000):
            x = np.arange(count, dtype="float32") % 97 + comm.rank
            expected = comm.size * (np.arange(count) % 97) + sum(range(comm.size))
            for algorithm in ("auto", "ring", "recursive_doubling"):
                assert np.array_equal(comm.allreduce(x, algorithm=algorithm), expected)
        rows = comm.allgatherv(np.full((comm.rank, 2), comm.rank, "int64"))
        assert rows.shape == (sum(range(comm.size)), 2)
        print(json.dumps({"links": repr(comm), "local": [comm.local_rank, comm.local_size]}))


if __name__ == "__main__":
    main()
