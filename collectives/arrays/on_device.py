"""Arrays in memory of a CUDA device that this library allocates.

Invariant: the memory can be opened by other processes, and is used again only when no array needs it any more.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

from collectives.arrays.dtypes import Dtype
from collectives.native import _engine

_WHERE: Final = re.compile(r"cuda(?::(\d{1,4}))?")


class DeviceArray:
    """An array on a CUDA device, without arithmetic of its own, made by `Communicator.empty(where="cuda")`.

    `cupy.asarray(a)` and `torch.as_tensor(a, device="cuda")` are arrays of these libraries in the same memory. When the
    last of these arrays is gone, the memory may be used for new arrays. A collective that gets a DeviceArray itself
    uses the device's default stream, unless `stream` is given.

    `shape`, `dtype`, `size` (elements) and `nbytes` are as NumPy's; `device` is the number of the device.
    """

    __slots__ = ("__weakref__", "_memory", "device", "dtype", "nbytes", "shape", "size")

    def __init__(self, shape: tuple[int, ...], dtype: Dtype, device: int) -> None:
        self.shape: Final = shape
        self.dtype: Final = dtype
        self.device: Final = device
        self.size: Final = math.prod(shape)
        self.nbytes: Final = self.size * dtype.itemsize
        self._memory: Final = _engine.CudaMemory(max(self.nbytes, 1), device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._memory.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"<DeviceArray: shape {self.shape}, {self.dtype}, on device {self.device}>"


def device_of(where: str) -> int:
    """Returns a device's number: 1 for "cuda:1"; for "cuda", this thread's device or 0. ValueError for other texts."""
    found = _WHERE.fullmatch(str(where))
    if found is None:
        raise ValueError(f'where is {where!r}: give "host", "cuda", or the number of a device, as in "cuda:1"')
    if found[1] is not None:
        return int(found[1])
    current = _engine.current_cuda_device()
    return 0 if current is None else current
