"""Buffers of XLA on a CUDA device, as arrays for a communicator.

Invariant: XLA owns the memory. An operation on it begins when XLA's stream has come to the call, and XLA's stream goes
on after it. Where the communicator has no engine for devices, it copies the buffers, for which the host waits.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

import numpy as np

from collectives.arrays.array import Array, Dtype
from collectives.native import _engine
from collectives.native.errors import OpTimeout

_PAGE: Final = 4096
_PATIENCE: Final = 300.0  # seconds for what is in XLA's stream before a copy
_PAUSE: Final = 0.0001


class XlaArray:
    """An array in XLA's memory on a CUDA device, used in the order of XLA's stream.

    Its methods that copy are named as in Numba's arrays.
    """

    __slots__ = ("_address", "_stream", "device", "dtype", "shape")

    def __init__(self, address: int, shape: tuple[int, ...], dtype: Dtype, stream: int, device: int) -> None:
        self._address: Final = address
        self._stream: Final = stream
        self.shape: Final = shape
        self.dtype: Final = dtype
        self.device: Final = device

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address, False),
            "strides": None,
            "stream": self._stream,
            "version": 3,
        }

    def view(self, dtype: Dtype) -> XlaArray:
        """The same elements as another dtype of the same size."""
        return XlaArray(self._address, self.shape, dtype, self._stream, self.device)

    def copy_to_host(self) -> Array:
        """A copy in host memory, when XLA's stream has come so far."""
        staging, memory = _staging(self.nbytes, self.device)
        staging.begin(self._stream)
        if self.nbytes and not staging.fetch([(0, self._address, self.nbytes)]).wait(_PATIENCE):
            raise OpTimeout(f"XLA's stream on device {self.device} has not come to a collective in {_PATIENCE:g} s")
        return memory[: self.nbytes].view(self.dtype).reshape(self.shape)

    def copy_to_device(self, host: Array) -> None:
        """Overwrite all elements with those of `host`."""
        staging, memory = _staging(self.nbytes, self.device)
        memory[: self.nbytes] = np.ascontiguousarray(host, self.dtype).reshape(-1).view(np.uint8)
        staging.begin(self._stream)
        if self.nbytes:
            staging.put([(0, self._address, self.nbytes)])
        _end(staging, self._stream, self.device)

    def __setitem__(self, _everything: Any, value: Any) -> None:
        self.copy_to_device(np.full(self.shape, value, self.dtype))


def drain(stream: int, device: int) -> None:
    """Wait on the host until XLA's stream has come to this call."""
    staging, _ = _staging(0, device)
    staging.begin(stream)
    _end(staging, stream, device)


def device_of(addresses: list[int]) -> int:
    """Returns the number of the CUDA device on which the first of these buffers in device memory lies.

    If no buffer is in device memory, returns the current device of the calling thread, or 0 if it has none.
    """
    for address in addresses:
        kind, device = _engine.cuda_memory(address) if address else ("host", -1)
        if kind == "cuda":
            return device
    current = _engine.current_cuda_device()
    return 0 if current is None else current


def _end(staging: _engine.CudaStaging, stream: int, device: int) -> None:
    staging.end(stream)
    until = time.monotonic() + _PATIENCE
    while not staging.is_free:
        if time.monotonic() > until:
            raise OpTimeout(f"XLA's stream on device {device} has not come to a collective in {_PATIENCE:g} s")
        time.sleep(_PAUSE)


def _staging(nbytes: int, device: int) -> tuple[_engine.CudaStaging, Array]:
    """Host memory by which at least so many bytes are copied; the caller keeps both until the copies are over."""
    whole = -(-max(nbytes, 1) // _PAGE) * _PAGE
    memory = np.empty(whole + _PAGE, np.uint8)
    start = -memory.ctypes.data % _PAGE
    return _engine.CudaStaging(memory[start : start + whole], whole, device), memory[start : start + whole]
