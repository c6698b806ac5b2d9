"""Copies arrays between a GPU's memory and host memory, by functions of the array's library (CuPy, Numba, PyTorch).

Arrays of others are copied by methods like those of Numba's arrays, `copy_to_host` and `copy_to_device`.

Invariant: nothing here imports a GPU library; as the array exists, its library is loaded already. Copies are complete
when a function returns.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.arrays.exporters import torch


def is_device_array(x: object) -> bool:
    """Whether `x` is in CUDA memory (CuPy, Numba, torch on a GPU)."""
    if type(x) is np.ndarray:
        return False
    try:
        return hasattr(x, "__cuda_array_interface__")
    except RuntimeError:  # torch, for a tensor on a GPU that requires a gradient; JAX, for a deleted array
        return bool(getattr(x, "is_cuda", False))


def describe(x: Any, name: str, moved: bool = False) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape and dtype of the device array `x`. Raises TypeError or ValueError if it cannot be written.

    `name`: the name of `x` in errors. `moved`: the collective only moves elements, so dtypes that cannot be reduced are
    accepted too.
    """
    if _library(x, name) == "torch":
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
    """A copy of `x` in host memory."""
    match _library(x, name):
        case "cupy":
            return np.asarray(x.get())
        case "torch":
            torch.check_gradient(x, name)
            return torch.read(x.detach().cpu(), name, moved)
        case _:
            return np.asarray(x.copy_to_host())


def like(host: npt.NDArray[Any], x: Any, name: str) -> Any:
    """Returns a new array with the elements of `host`, on the device of `x` and of the same library (such as CuPy).

    `name`: the name of `x` in errors.
    """
    match _library(x, name):
        case "cupy":
            with x.device:
                return sys.modules["cupy"].asarray(host)
        case "torch":
            return torch.tensor_of(host).to(x.device)
        case "numba":
            return sys.modules["numba.cuda"].to_device(host)
        case other:
            raise TypeError(f"{name} is a device array of {other!r}, of which no new ones can be made here: give out=")


def fill(x: Any, host: npt.NDArray[Any], name: str) -> None:
    """Overwrite `x` with `host`, of the same shape and dtype."""
    match _library(x, name):
        case "cupy":
            with x.device:
                x.set(host)
        case "torch":
            x.detach().copy_(torch.tensor_of(host))
        case _:
            x.copy_to_device(host)


def _library(x: object, name: str) -> str:
    library = type(x).__module__.partition(".")[0]
    if library not in ("cupy", "torch", "numba") and not hasattr(type(x), "copy_to_host"):
        raise TypeError(f"{name} is a device array of {library!r}: give numpy.asarray({name}), its copy in host memory")
    return library
