"""The common part of peers on CUDA devices: CuPy's arrays, a stream, test data, and where ranks find each other.

Invariant: nothing is installed: these peers use the packages of the interpreter that runs the benchmark. Rank r uses
device r, counted modulo the number of devices, as this library does in the same run. Where several ranks use one
device, NCCL is asked to allow it; it does so from 2.32 on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from collectives.bench.cases import Case
from collectives.bench.data import Data
from collectives.bench.peers import here

JOIN: Final = 60.0  # seconds to find the other ranks
_POLL: Final = 0.01
_SWITCH: Final = "NCCL_MULTI_RANK_GPU_ENABLE"


def environment(folder: str) -> dict[str, str]:
    return {**here.environment(), _SWITCH: os.environ.get(_SWITCH, "1")}


def publish(file: Path, content: bytes) -> None:
    """Write `file` so that `await_file` never sees a part of it."""
    unfinished = file.with_suffix(".part")
    unfinished.write_bytes(content)
    unfinished.replace(file)


def await_file(file: Path) -> bytes:
    """Wait until another rank has written `file`; return the content. Raises: TimeoutError after `JOIN` seconds."""
    deadline = time.monotonic() + JOIN
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            return file.read_bytes()
        time.sleep(_POLL)
    raise TimeoutError(f"rank 0 has not written {file.name} within {JOIN:g} s")


class Stream:
    """The CUDA stream for all work of a rank on its device. The object also allocates CuPy arrays on the device."""

    def __init__(self, rank: int) -> None:
        """Raises: TransportUnavailable without a device or CuPy."""
        from collectives.bench.device import using

        self._inside: Final = contextlib.ExitStack()
        self._device: Final = self._inside.enter_context(using(rank))

    @property
    def handle(self) -> int:
        return int(self._device.stream.ptr)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return an uninitialised array. Raises: NotImplementedError if CuPy does not have the dtype."""
        from collectives.arrays.array import dtype_of

        try:
            return self._device.empty(shape, dtype_of(dtype))
        except (TypeError, ValueError) as error:
            raise NotImplementedError(f"CuPy has no {dtype}: {error}") from error

    def settle(self) -> None:
        self._device.settle()

    def close(self) -> None:
        self._inside.close()


def write(array: Any, values: np.ndarray[Any, Any]) -> None:
    """Overwrite an array of CuPy with `values`, which has as many elements."""
    array.set(values.reshape(array.shape))


def read(array: Any) -> np.ndarray[Any, Any]:
    """Return a copy of an array of CuPy in host memory."""
    from collectives.bench.device import host_copy

    return host_copy(array)


class DeviceTask:
    """A collective of another library on arrays in CUDA memory, ready to be run and timed: see `bench.peers.Task`.

    `settle` waits until all calls are complete. A timed iteration ends with this wait.
    """

    def __init__(
        self,
        case: Case,
        rank: int,
        call: Callable[[], Any],
        settle: Callable[[], Any],
        inp: Any,
        out: Any,
        write: Callable[[Any, np.ndarray[Any, Any]], Any],
        read: Callable[[Any], np.ndarray[Any, Any]],
    ) -> None:
        """`out`: the array of the result, which may be `inp`. `write` and `read` copy an array from and to the host."""
        from collectives.arrays.array import dtype_of

        self.call: Final = call
        self.settle: Final = settle
        self._case, self._rank, self._dtype = case, rank, dtype_of(case.dtype)
        self._inp, self._out = inp, out
        self._write, self._read = write, read

    def wrong(self, salt: int) -> int:
        case, data = self._case, Data(self._case, self._dtype, self._rank, salt)
        values = np.ones(case.elements_in, self._dtype)
        if self._out is self._inp:
            data.spoil(values)
        else:
            result = np.ones(case.elements_out, self._dtype)
            data.spoil(result)
            self._write(self._out, result)
        data.fill(values)
        self._write(self._inp, values)
        self.call()
        self.settle()
        return data.wrong(self._read(self._out))
