"""As much of CuPy as the library uses, in host memory: CuPy itself runs only where there is a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class StandInCupy:
    """An array that lies on a device, as far as anybody can tell."""

    __module__ = "cupy"

    def __init__(self, host: npt.NDArray[Any], writable: bool = True, strides: tuple[int, ...] | None = None) -> None:
        self.memory = np.array(host)
        self.dtype = host.dtype
        self.device = self
        self.__cuda_array_interface__ = {
            "shape": host.shape,
            "typestr": host.dtype.str,
            "data": (4096, not writable),
            "strides": strides,
            "version": 3,
        }

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...

    def get(self) -> npt.NDArray[Any]:
        return np.array(self.memory)

    def set(self, host: npt.NDArray[Any]) -> None:
        self.memory[...] = host
