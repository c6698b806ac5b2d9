"""NCCL, called bare: by ctypes, on CuPy's arrays, without a check of an argument.

Invariant: it is the libnccl that this library would use in the same process. A call costs what ctypes costs and what
NCCL does; its return value is looked at, and nothing else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
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

_TYPES: Final = {
    name: number
    for number, name in enumerate(
        ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
    )
}
_OPS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}

_SYMMETRIC: Final = 1  # NCCL_WIN_COLL_SYMMETRIC


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    assert rank is not None
    here.packages()
    from collectives.transports import nccl

    found = nccl.find()
    if found.problem:
        raise RuntimeError(found.problem)
    return Member(found.path, Path(folder), ranks, rank)


class Member:
    def __init__(self, path: str, folder: Path, ranks: int, rank: int) -> None:
        from collectives.transports.nccl import version_text

        self.rank: Final = rank
        self._stream: Final = Stream(rank)
        ready = self._stream.empty((1,), "float32")  # the device's context exists before NCCL looks for it
        self._nccl: Final = ctypes.CDLL(path)
        version = ctypes.c_int()
        self._do("ncclGetVersion", ctypes.byref(version))
        self.versions: Final = {"NCCL": version_text(version.value)}
        unique, file = _UniqueId(), folder / "nccl"
        if rank == 0:
            self._do("ncclGetUniqueId", ctypes.byref(unique))
            publish(file, bytes(unique))
        else:
            unique = _UniqueId.from_buffer_copy(await_file(file))
        self._comm: Final = ctypes.c_void_p()
        self._do("ncclCommInitRank", ctypes.byref(self._comm), ranks, unique, rank)
        self._barrier: Final = self._call("ncclAllReduce", ready, ready, 1, 7, 0)

    def barrier(self) -> None:
        self._barrier()
        self._stream.settle()

    def task(self, case: Case) -> DeviceTask:
        kind, op = _TYPES.get(case.dtype), _OPS.get(case.op)
        if kind is None:
            raise NotImplementedError(f"NCCL has no {case.dtype}")
        if op is None and case.op != "none":
            raise NotImplementedError(f"NCCL has no {case.op}")
        mine, root = self.rank == case.root, case.root
        inp = self._stream.empty((case.elements_in,), case.dtype)
        inp.fill(1)
        out = inp
        if case.collective != "broadcast":
            out = self._stream.empty((case.elements_out,), case.dtype)
            out.fill(1)
        match case.collective:
            case "allreduce":
                made = self._call("ncclAllReduce", inp, out, case.count, kind, op)
            case "reduce":
                made = self._call("ncclReduce", inp, out, case.count, kind, op, root)
            case "reduce_scatter":
                made = self._call("ncclReduceScatter", inp, out, case.count, kind, op)
            case "broadcast":
                made = self._call("ncclBroadcast", inp, out, case.count, kind, root)
            case "allgather":
                made = self._call("ncclAllGather", inp, out, case.count, kind)
            case "alltoall":
                made = self._call("ncclAlltoAll", inp, out, case.count, kind)
            case "gather":
                made = self._call("ncclGather", inp, out if mine else inp, case.count, kind, root)
            case "scatter":
                made = self._call("ncclScatter", inp, out, case.count, kind, root)
            case other:
                raise NotImplementedError(f"NCCL has no {other}")
        return DeviceTask(case, self.rank, made, self._stream.settle, inp, out, write, read)

    def window(self, nbytes: int) -> int:
        """Return the address of new memory that all ranks register together as a symmetric window, from NCCL 2.27 on.

        The memory and its registration last as long as the process. Raises: NotImplementedError for older versions.
        """
        if not hasattr(self._nccl, "ncclCommWindowRegister"):
            raise NotImplementedError(f"NCCL {self.versions['NCCL']} has no ncclCommWindowRegister")
        address, window = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("ncclMemAlloc", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self._do(
            "ncclCommWindowRegister", self._comm, address, ctypes.c_size_t(nbytes), ctypes.byref(window), _SYMMETRIC
        )
        return int(address.value or 0)

    def allreduce(self, x: Any, out: Any) -> Callable[[], None]:
        """Return a function that issues a sum of float32 arrays; `settle` waits for it."""
        return self._call("ncclAllReduce", x, out, x.size, _TYPES["float32"], _OPS["sum"])

    def settle(self) -> None:
        self._stream.settle()

    def close(self) -> None:
        self._do("ncclCommDestroy", self._comm)
        self._stream.close()

    def _call(self, name: str, x: Any, y: Any, count: int, *more: Any) -> Callable[[], None]:
        """A function that calls NCCL's function `name`, whose arguments are converted once, here."""
        from collectives.bench.device import address

        function = getattr(self._nccl, name, None)
        if function is None:
            raise NotImplementedError(f"NCCL {self.versions['NCCL']} has no {name}")
        addresses = (ctypes.c_void_p(address(x)), ctypes.c_void_p(address(y)))
        arguments = (*addresses, ctypes.c_size_t(count), *map(ctypes.c_int, more), self._comm)
        stream, failed = ctypes.c_void_p(self._stream.handle), self._failed

        def call(_kept: Any = (x, y)) -> None:
            if code := function(*arguments, stream):
                failed(name, code)

        return call

    def _do(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._nccl, name)(*arguments):
            self._failed(name, code)

    def _failed(self, name: str, code: int) -> None:
        said = self._nccl.ncclGetLastError
        said.restype = ctypes.c_char_p
        raise RuntimeError(f"{name} returned {code}: {(said(None) or b'').decode(errors='replace')}")
