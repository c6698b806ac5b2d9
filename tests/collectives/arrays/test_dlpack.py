"""Arrays that are exported by DLPack, in capsules made here: no device is needed to read them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from collectives.arrays import dlpack
from collectives.arrays.dtypes import Dtype, named


class Exporter:
    """An array of three elements on device 1, with a dtype of that DLPack code and number of bits."""

    def __init__(self, code: int, bits: int) -> None:
        self._shape = (ctypes.c_int64 * 1)(3)
        self._tensor = dlpack._Tensor(0x1000, 2, 1, 1, code, bits, 1, self._shape, None, 16)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes, new.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


@pytest.mark.parametrize(
    ("code", "bits", "dtype"),
    [
        (0, 16, np.dtype(np.int16)),
        (2, 32, np.dtype(np.float32)),
        (4, 16, named("bfloat16")),
        (6, 8, np.dtype(np.bool_)),
        (10, 8, named("float8_e4m3fn")),
        (12, 8, named("float8_e5m2")),
    ],
    ids=str,
)
def test_dtypes(code: int, bits: int, dtype: Dtype) -> None:
    found = dlpack.exported(Exporter(code, bits), 1, "x")
    assert found.dtype == dtype
    assert found[:3] == (0x1010, (3,), None) and found.device == 1


@pytest.mark.parametrize(("code", "bits"), [(3, 64), (0, 4), (12, 16)])
def test_a_dtype_without_a_name_is_refused(code: int, bits: int) -> None:
    with pytest.raises(TypeError, match=f"x has a dtype .* code {code}, {bits} bits"):
        dlpack.exported(Exporter(code, bits), 1, "x")
