"""Arrays that are exported by DLPack, in capsules made here."""

from __future__ import annotations

import ctypes
from typing import Any

from collectives.arrays import dlpack

INT32, FLOAT32 = (0, 32), (2, 32)


class Exporter:
    """An array on a CUDA device, with a dtype of that DLPack code and number of bits. `owner`: of its memory."""

    def __init__(
        self, address: int, shape: tuple[int, ...], kind: tuple[int, int], device: int, owner: object = None
    ) -> None:
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._device = device
        self._owner = owner
        self._tensor = dlpack._Tensor(address, 2, device, len(shape), *kind, 1, self._shape, None, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._device)

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes, new.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object
        return new(ctypes.addressof(self._tensor), b"dltensor", None)
