"""One rank of a job between namespaces: every collective, by every algorithm that knows of hosts and by choice."""

from __future__ import annotations

import json

import numpy as np

import collectives
from collectives.algorithms import algorithms

COUNTS = (1, 7, 1000, 100_003)  # fewer elements than blocks, odd ones, and more than a slice


def names(collective: str) -> list[str]:
    return ["auto", *(a.name for a in algorithms(collective) if a.hosts)]


def main() -> None:
    with collectives.init(join_timeout=30, timeout=60) as comm:
        rank, size = comm.rank, comm.size
        for count in COUNTS:
            data = [
                np.random.default_rng([r, count]).integers(-50, 50, (size, count)).astype("f4") for r in range(size)
            ]
            mine, total = data[rank], np.sum(data, axis=0)
            for name in names("allreduce"):
                assert np.array_equal(comm.allreduce(mine, algorithm=name), total), name
                inside = mine.copy()
                assert comm.allreduce(inside, "max", out=inside, algorithm=name) is inside
                assert np.array_equal(inside, np.max(data, axis=0)), name
            for name in names("reduce_scatter"):
                assert np.array_equal(comm.reduce_scatter(mine, algorithm=name), total[rank : rank + 1]), name
            for name in names("scan"):
                assert np.array_equal(comm.scan(mine, algorithm=name), np.sum(data[: rank + 1], axis=0)), name
            for name in names("exscan"):
                before = comm.exscan(mine, "max", algorithm=name)
                assert np.array_equal(before, np.max(data[:rank], axis=0) if rank else np.full_like(mine, -np.inf))
            assert np.array_equal(comm.allreduce(mine, np.add), total)
            status, got = collectives.Status(), np.empty_like(mine)
            comm.sendrecv(mine, (rank + 1) % size, got, status=status)
            assert status.source == (rank - 1) % size and np.array_equal(got, data[rank - 1])
            for name in names("allgather"):
                assert np.array_equal(comm.allgather(mine, algorithm=name), data), name
                rows = comm.allgatherv(mine[:rank], algorithm=name)
                assert np.array_equal(rows, np.concatenate([x[:r] for r, x in enumerate(data)])), name
            for root in range(size):
                for name in names("broadcast"):
                    x = mine.copy()
                    assert np.array_equal(comm.broadcast(x, root, algorithm=name), data[root]), name
                for name in names("reduce"):
                    result = comm.reduce(mine, root=root, algorithm=name)
                    assert np.array_equal(result, total) if rank == root else result is None, name
                gathered = comm.gather(mine, root)
                assert np.array_equal(gathered, data) if rank == root else gathered is None
                assert np.array_equal(comm.scatter(mine if rank == root else None, root), data[root][rank])
            assert np.array_equal(comm.alltoall(mine), [x[rank] for x in data])
            comm.barrier()
        inexact = np.random.default_rng(rank).standard_normal(1000).astype("f4")
        for name in names("allreduce"):
            everyones = comm.allgather(comm.allreduce(inexact, algorithm=name))
            assert all(np.array_equal(each, everyones[0]) for each in everyones), name  # the same bits everywhere
            large = np.random.default_rng(rank).standard_normal(100_003).astype("f4")
            rounded = comm.allreduce(large, algorithm=name, wire="int8")
            everyones = comm.allgather(rounded)
            assert all(np.array_equal(each, everyones[0]) for each in everyones), name
            away = np.abs(rounded - comm.allreduce(large)).max()
            assert away < size * size * np.abs(comm.allgather(large)).max() / 254, (name, away)
        reported = comm.explain("allreduce", 1 << 20).splitlines()
        print(json.dumps([line.strip() for line in reported if line.startswith(("  algorithm", "  hosts"))]))


if __name__ == "__main__":
    main()
