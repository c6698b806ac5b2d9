"""Gloo, as part of PyTorch.

Invariant: Gloo is called as its users call it, through `torch.distributed`. Gloo's allreduce, reduce and broadcast work
in place only, so they are measured in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from collectives.bench.cases import Case

ENVIRONMENT = "gloo"
REQUIREMENTS = ("torch==2.13.0",)
BARE: tuple[str, ...] = ()


def commands(python: Path, worker: Sequence[str], ranks: int) -> list[list[str]]:
    return [[str(python), *worker, str(rank)] for rank in range(ranks)]


def environment(folder: str) -> dict[str, str]:
    return {"GLOO_SOCKET_IFNAME": "lo"}


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    assert rank is not None
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    return Member(rank)


class Member:
    def __init__(self, rank: int) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.rank = rank
        self._dist: Any = dist
        self._tensor: Any = torch.from_numpy
        self._ops = {
            "sum": dist.ReduceOp.SUM,
            "prod": dist.ReduceOp.PRODUCT,
            "min": dist.ReduceOp.MIN,
            "max": dist.ReduceOp.MAX,
            "band": dist.ReduceOp.BAND,
            "bor": dist.ReduceOp.BOR,
            "bxor": dist.ReduceOp.BXOR,
        }

    def empty(self, elements: int, dtype: Any) -> Any:
        return np.empty(elements, dtype)

    def barrier(self) -> None:
        self._dist.barrier()

    def bind(self, case: Case, inp: Any, out: Any) -> tuple[Callable[[], Any], Any]:
        dist, root = self._dist, case.root
        if case.op not in (*self._ops, "none"):
            raise NotImplementedError(f"Gloo has no {case.op}")
        op = self._ops.get(case.op)
        x, y = self._tensor(inp), self._tensor(out)
        mine = self.rank == root
        match case.collective:
            case "allreduce":
                return lambda: dist.all_reduce(x, op), inp
            case "reduce":
                return lambda: dist.reduce(x, root, op), inp
            case "broadcast":
                return lambda: dist.broadcast(x, root), inp
            case "allgather":
                return lambda: dist.all_gather_into_tensor(y, x), out
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(y, x, op), out
            case "alltoall":
                return lambda: dist.all_to_all_single(y, x), out
            case "gather":
                parts = list(y.view(case.ranks, -1)) if mine else None
                return lambda: dist.gather(x, parts, root), out
            case "scatter":
                parts = list(x.view(case.ranks, -1)) if mine else None
                return lambda: dist.scatter(y, parts, root), out
            case "scan" | "exscan":
                raise NotImplementedError(f"Gloo has no {case.collective}")
            case _:
                return dist.barrier, out

    def close(self) -> None:
        self._dist.destroy_process_group()
