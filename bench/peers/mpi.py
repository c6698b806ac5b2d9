"""The common part of the MPI peers: mpi4py's calls on NumPy arrays. Each MPI library has a launcher of its own.

Invariant: MPI is called in mpi4py's fast way: by the methods for arrays, which find the MPI datatype of an array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.bench.cases import Case


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    from mpi4py import MPI

    if MPI.COMM_WORLD.size != ranks:
        raise RuntimeError(f"mpiexec has started groups of {MPI.COMM_WORLD.size} instead of one of {ranks}")
    return Member(MPI)


class Member:
    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        self.rank = int(self._comm.rank)
        self.barrier: Callable[[], None] = self._comm.Barrier

    def empty(self, elements: int, dtype: Any) -> Any:
        return np.empty(elements, dtype)

    def bind(self, case: Case, inp: Any, out: Any) -> tuple[Callable[[], Any], Any]:
        comm, root = self._comm, case.root
        op = getattr(self._mpi, case.op.upper(), None)
        if op is None and case.kind.reduces:
            raise NotImplementedError(f"MPI has no {case.op}")
        mine = self.rank == root
        match case.collective:
            case "allreduce":
                return lambda: comm.Allreduce(inp, out, op), out
            case "scan":
                return lambda: comm.Scan(inp, out, op), out
            case "exscan":
                return lambda: comm.Exscan(inp, out, op), out
            case "reduce":
                return lambda: comm.Reduce(inp, out if mine else None, op, root), out
            case "broadcast":
                return lambda: comm.Bcast(inp, root), inp
            case "allgather":
                return lambda: comm.Allgather(inp, out), out
            case "reduce_scatter":
                return lambda: comm.Reduce_scatter_block(inp, out, op), out
            case "alltoall":
                return lambda: comm.Alltoall(inp, out), out
            case "gather":
                return lambda: comm.Gather(inp, out if mine else None, root), out
            case "scatter":
                return lambda: comm.Scatter(inp if mine else None, out, root), out
            case _:
                return comm.Barrier, out

    def close(self) -> None:
        self._mpi.Finalize()
