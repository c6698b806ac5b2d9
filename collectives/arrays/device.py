"""Copies arrays between a GPU's memory and host memory, by functions of the array's library (CuPy, Numba, PyTorch).

Arrays of others are copied by methods like those of Numba's arrays, `copy_to_host` and `copy_to_device`, or, if they
have none, such as those of JAX, by the CUDA driver.

Invariant: nothing here imports a GPU library; as the array exists, its library is loaded already. Copies are complete
when a function returns.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.arrays import cuda
from collectives.arrays.exporters import torch
from collectives.arrays.located import library_of
from collectives.arrays.on_device import DeviceArray
from collectives.native import _engine


def describe(x: Any, name: str, moved: bool = False) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape and dtype of the device array `x`. Raises TypeError or ValueError if it cannot be written now.

    `name`: the name of `x` in errors. `moved`: the collective only moves elements, so dtypes that cannot be reduced are
    accepted too.
    """
    cuda.refuse_capture(x)
    if _is_foreign(x):
        array = cuda.writing(x, name, moved=moved)
        return array.shape, array.dtype
    if library_of(type(x)) == "torch":
        torch.check_gradient(x, name)
        if not x.is_contiguous():
            raise ValueError(f"{name} is not contiguous: results are written to C-contiguous arrays only")
        return tuple(x.shape), torch.dtype_of(x, name, moved)
    interface = x.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(x.dtype)  # the interface has no name for bfloat16
    if interface["data"][1]:
        raise ValueError(f"{name} is read-only")
    strides, expected = interface.get("strides"), dtype.itemsize
    for extent, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if extent > 1 and stride != expected:
            raise ValueError(f"{name} is not contiguous: results are written to C-contiguous arrays only")
        expected *= extent
    return shape, dtype


def to_host(x: Any, name: str, moved: bool = False) -> npt.NDArray[Any]:
    """Returns a copy of `x` in host memory. Raises TypeError or ValueError if `x` cannot be copied now."""
    cuda.refuse_capture(x)
    if _is_foreign(x):
        array = cuda.reading(x, name, moved=moved)
        host = np.empty(array.shape, array.dtype)
        _copy(array, host, to_host=True)
        return host
    match library_of(type(x)):
        case "cupy":
            return np.asarray(x.get())
        case "torch":
            torch.check_gradient(x, name)
            return torch.read(x.detach().cpu(), name, moved)
        case _:
            return np.asarray(x.copy_to_host())


def check_makes(x: Any, name: str) -> None:
    """Raises TypeError if no new array can be made of the library of `x`, such as JAX."""
    library = library_of(type(x))
    if library not in ("cupy", "torch", "numba") and not isinstance(x, DeviceArray):
        raise TypeError(f"{name} is a device array of {library!r}, of which no new ones can be made here: give out=")


def like(host: npt.NDArray[Any], x: Any) -> Any:
    """Returns a new array with the elements of `host`, on the device of `x` and of the same library (such as CuPy).

    Raises TransportUnavailable if the device's memory is full.
    """
    if isinstance(x, DeviceArray):
        made = DeviceArray(host.shape, host.dtype, x.device)
        _copy(cuda.writing(made, moved=True), host, to_host=False)
        return made
    library = library_of(type(x))
    with cuda.allocating(library, host.shape, cuda.device_of(x)):
        if library == "cupy":
            with x.device:
                return sys.modules["cupy"].asarray(host)
        if library == "torch":
            return torch.tensor_of(host).to(x.device)
        return sys.modules["numba.cuda"].to_device(host)


def fill(x: Any, host: npt.NDArray[Any], name: str) -> None:
    """Overwrite `x` with `host`, of the same shape and dtype."""
    if _is_foreign(x):
        _copy(cuda.writing(x, name, moved=True), host, to_host=False)
        return
    match library_of(type(x)):
        case "cupy":
            with x.device:
                x.set(host)
        case "torch":
            x.detach().copy_(torch.tensor_of(host))
        case _:
            x.copy_to_device(host)


def _is_foreign(x: object) -> bool:
    """Whether `x` has no copies of its own that are used here."""
    return library_of(type(x)) not in ("cupy", "torch", "numba") and not hasattr(type(x), "copy_to_host")


def _copy(array: cuda.CudaArray, host: npt.NDArray[Any], *, to_host: bool) -> None:
    memory = host.reshape(-1).view(np.uint8)
    _engine.copy_cuda(memory, array.address, array.nbytes, array.device, array.stream, to_host)
