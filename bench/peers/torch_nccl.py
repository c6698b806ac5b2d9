"""NCCL as part of PyTorch: `torch.distributed` with the backend `nccl`, on tensors of torch.

Invariant: it is called as its users call it. The clock ends when torch's current stream is empty.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import numpy as np

from collectives.bench.cases import Case
from collectives.bench.peers import here
from collectives.bench.peers.here import commands
from collectives.bench.peers.on_device import JOIN, DeviceTask, environment

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]

ENVIRONMENT = "here"
REQUIREMENTS = ("NCCL", "torch")
BARE: tuple[str, ...] = ()


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    assert rank is not None
    here.packages()
    return Member(folder, ranks, rank)


class Member:
    def __init__(self, folder: str, ranks: int, rank: int) -> None:
        import torch
        import torch.distributed as dist

        if not torch.cuda.is_available() or not dist.is_nccl_available():
            raise RuntimeError(f"PyTorch {torch.__version__} has no CUDA device or no NCCL")
        self.rank: Final = rank
        self._torch: Any = torch
        self._dist: Any = dist
        self._device: Final = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(self._device)
        self._stream: Final = torch.cuda.Stream(self._device)
        torch.cuda.set_stream(self._stream)
        dist.init_process_group(
            "nccl",
            init_method=f"file://{folder}/torch",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=JOIN),
            device_id=self._device,
        )
        release: Any = torch.cuda.nccl.version()
        self.versions: Final = {"NCCL": ".".join(map(str, release))}
        self._ready: Final = torch.ones(1, device=self._device)

    def barrier(self) -> None:
        self._dist.all_reduce(self._ready)
        self._stream.synchronize()

    def task(self, case: Case) -> DeviceTask:
        dist, root, mine = self._dist, case.root, self.rank == case.root
        ops = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN}
        ops |= {"max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG}
        if case.op not in (*ops, "none"):
            raise NotImplementedError(f"torch's NCCL backend has no {case.op}")
        op, dtype = ops.get(case.op), getattr(self._torch, case.dtype, None)
        if dtype is None:
            raise NotImplementedError(f"torch has no {case.dtype}")
        x = self._torch.ones(case.elements_in, dtype=dtype, device=self._device)
        y = x  # in place only, as torch's allreduce, reduce and broadcast are
        if case.collective not in ("allreduce", "reduce", "broadcast"):
            y = self._torch.ones(case.elements_out, dtype=dtype, device=self._device)
        match case.collective:
            case "allreduce":
                call = lambda: dist.all_reduce(x, op)  # noqa: E731
            case "reduce":
                call = lambda: dist.reduce(x, root, op)  # noqa: E731
            case "broadcast":
                call = lambda: dist.broadcast(x, root)  # noqa: E731
            case "allgather":
                call = lambda: dist.all_gather_into_tensor(y, x)  # noqa: E731
            case "reduce_scatter":
                call = lambda: dist.reduce_scatter_tensor(y, x, op)  # noqa: E731
            case "alltoall":
                call = lambda: dist.all_to_all_single(y, x)  # noqa: E731
            case "gather":
                parts = list(y.view(case.ranks, -1)) if mine else None
                call = lambda: dist.gather(x, parts, root)  # noqa: E731
            case "scatter":
                rows = list(x.view(case.ranks, -1)) if mine else None
                call = lambda: dist.scatter(y, rows, root)  # noqa: E731
            case other:
                raise NotImplementedError(f"torch has no {other}")
        return DeviceTask(case, self.rank, call, self._stream.synchronize, x, y, self._write, _read)

    def close(self) -> None:
        self._dist.destroy_process_group()

    def _write(self, tensor: Any, values: np.ndarray[Any, Any]) -> None:
        """By bytes, since NumPy and torch do not have the same dtypes."""
        source = self._torch.from_numpy(values.view(np.uint8))
        tensor.view(self._torch.uint8).copy_(source)


def _read(tensor: Any) -> Any:
    import torch

    from collectives.arrays.array import dtype_of

    found = tensor.view(torch.uint8).cpu().numpy()
    return found.view(dtype_of(str(tensor.dtype).removeprefix("torch.")))
