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

__version__ = "stand-in"


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

    def part(self, begin: int, count: int) -> ndarray:
        """A view of elements of this array, as of a block that a pool has cut."""
        made = object.__new__(ndarray)
        made.__dict__.update(self.__dict__)
        made.shape, made.size, made.nbytes = (count,), count, count * self.dtype.itemsize
        made._address = self._address + begin * self.dtype.itemsize
        made._host = self._host[begin : begin + count]
        return made

    def peek(self) -> npt.NDArray[Any]:
        """What is there now, whatever streams do."""
        return np.array(self._host)

    def fill(self, value: Any) -> None:
        self._host[...] = value

    def free(self) -> None:
        """What the pool of CuPy does when it is emptied."""
        driver.free(self._address)


ndarray.__module__ = "cupy"


def _around(x: Any) -> ndarray:
    """An array of another library on the device, as one of this: in the same memory."""
    interface = x.__cuda_array_interface__
    made = object.__new__(ndarray)
    made.shape, made.dtype = interface["shape"], np.dtype(interface["typestr"])
    made.size = math.prod(made.shape)
    made.nbytes = made.size * made.dtype.itemsize
    made.device, made._address, made._extra = cuda.Device(), interface["data"][0], (False, None)
    memory = (ctypes.c_char * made.nbytes).from_address(made._address)
    made._host = np.frombuffer(memory, np.uint8).view(made.dtype).reshape(made.shape)
    made._owner = x  # type: ignore[attr-defined]
    return made


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> ndarray:
    return ndarray(tuple(shape), dtype)


def asarray(host: Any) -> ndarray:
    if hasattr(host, "__cuda_array_interface__"):
        return _around(host)
    values = np.asarray(host)
    made = ndarray(values.shape, values.dtype)
    made.set(values)
    return made
