"""CuPy's own collectives, `cupyx.distributed`, which call NCCL through CuPy's binding.

Invariant: they are called as CuPy's documentation shows, on CuPy's arrays in its current stream.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

from collectives.bench.cases import Case
from collectives.bench.peers import here
from collectives.bench.peers.here import commands
from collectives.bench.peers.on_device import DeviceTask, Stream, await_file, environment, publish, read, write

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]

ENVIRONMENT = "here"
REQUIREMENTS = ("NCCL", "cupy-cuda12x", "cupy-cuda13x")
BARE: tuple[str, ...] = ()

_OPS: Final = ("sum", "prod", "min", "max", "none")


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    assert rank is not None
    here.packages()
    return Member(Path(folder), ranks, rank)


class Member:
    def __init__(self, folder: Path, ranks: int, rank: int) -> None:
        from cupy.cuda import nccl
        from cupyx.distributed import init_process_group

        from collectives.transports.nccl import version_text

        self.rank: Final = rank
        self._stream: Final = Stream(rank)
        file = folder / "port"
        if rank == 0:
            publish(file, str(_free_port()).encode())
        self._group: Final = init_process_group(ranks, rank, host="127.0.0.1", port=int(await_file(file)))
        self.versions: Final = {"NCCL": version_text(nccl.get_version())}
        self.barrier: Final = self._group.barrier

    def task(self, case: Case) -> DeviceTask:
        group, op, root, count = self._group, case.op, case.root, case.count
        if op not in _OPS:
            raise NotImplementedError(f"cupyx.distributed has no {op}")
        parts = case.ranks
        inp = self._array(case.elements_in, parts if case.collective in ("alltoall", "scatter") else 0, case.dtype)
        out = inp
        if case.collective != "broadcast":
            out = self._array(case.elements_out, parts if case.collective in ("alltoall", "gather") else 0, case.dtype)
        match case.collective:
            case "allreduce":
                call = lambda: group.all_reduce(inp, out, op)  # noqa: E731
            case "reduce":
                call = lambda: group.reduce(inp, out, root, op)  # noqa: E731
            case "reduce_scatter":
                call = lambda: group.reduce_scatter(inp, out, count, op)  # noqa: E731
            case "broadcast":
                call = lambda: group.broadcast(inp, root)  # noqa: E731
            case "allgather":
                call = lambda: group.all_gather(inp, out, count)  # noqa: E731
            case "alltoall":
                call = lambda: group.all_to_all(inp, out)  # noqa: E731
            case "gather":
                call = lambda: group.gather(inp, out, root)  # noqa: E731
            case "scatter":
                call = lambda: group.scatter(inp, out, root)  # noqa: E731
            case other:
                raise NotImplementedError(f"cupyx.distributed has no {other}")
        return DeviceTask(case, self.rank, call, self._stream.settle, inp, out, write, read)

    def close(self) -> None:
        self._group.stop()
        self._stream.close()

    def _array(self, elements: int, parts: int, dtype: str) -> Any:
        """An array with a row for each rank if `parts` is their number, with one axis if it is 0."""
        made = self._stream.empty((parts, elements // parts) if parts else (elements,), dtype)
        made.fill(1)
        return made


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
