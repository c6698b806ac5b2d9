"""A stand-in for CuPy on the stand-in for the CUDA driver: as much as the library and its tests use.

Invariant: memory belongs to the stand-in's devices, and everything is ordered by its streams.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from . import cuda as cuda
from . import driver


class ndarray:
    """An array on a device. `writable`, `strides`: what it says about itself."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, writable: bool = True, strides: Any = None) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.size = math.prod(shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.device = cuda.Device()
        self._address = driver.alloc(max(self.nbytes, 1))
        memory = (ctypes.c_char * self.nbytes).from_address(self._address)
        self._host = np.frombuffer(memory, np.uint8).view(self.dtype).reshape(shape)
        self._extra = (not writable, strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        read_only, strides = self._extra
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address, read_only),
            "strides": strides,
            "stream": cuda.get_current_stream().ptr,
            "version": 3,
        }

    def get(self) -> npt.NDArray[Any]:
        cuda.get_current_stream().synchronize()
        return np.array(self._host)

    def set(self, host: npt.NDArray[Any]) -> None:
        cuda.get_current_stream().synchronize()
        self._host[...] = host

    def free(self) -> None:
        """What the pool of CuPy does when it is emptied."""
        driver.free(self._address)


ndarray.__module__ = "cupy"


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> ndarray:
    return ndarray(tuple(shape), dtype)


def asarray(host: Any) -> ndarray:
    values = np.asarray(host)
    made = ndarray(values.shape, values.dtype)
    made.set(values)
    return made
