"""Arrays that are exported by DLPack, read from the capsule of the export.

Invariant: the capsule is not consumed, so the exporter frees what belongs to it with the last reference to the capsule.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

from collectives.arrays.dtypes import Dtype, dtype_of, named

_CUDA: Final = (2, 13)  # kDLCUDA and kDLCUDAManaged
_READ_ONLY: Final = 1  # a bit of the flags of a versioned export
_KINDS: Final = {0: "int", 1: "uint", 2: "float", 5: "complex"}
_NAMED: Final = {(4, 16): "bfloat16", (6, 8): "bool", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2"}


class Exported(NamedTuple):
    """An array, as DLPack describes it.

    `strides` are in bytes, None for a contiguous array. `capsule` keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: Dtype
    device: int
    read_only: bool
    capsule: Any


def is_cuda(x: object) -> bool:
    """Whether `x` can be exported by DLPack, and is in the memory of a CUDA device."""
    where = getattr(x, "__dlpack_device__", None)
    if where is None:
        return False
    try:
        kind, _ = where()
    except Exception:  # a deleted or abstract array: whoever reads it raises the error
        return False
    return int(kind) in _CUDA


def exported(x: Any, stream: int, name: str) -> Exported:
    """Exports `x` by DLPack for use in the stream `stream`. Raises TypeError if NumPy has no name for its dtype."""
    try:
        capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # exporters from before DLPack 1.0
        capsule = x.__dlpack__(stream=stream)
    versioned = _is_valid(capsule, b"dltensor_versioned")
    pointer = _pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor")
    if versioned:
        managed = ctypes.cast(pointer, ctypes.POINTER(_Versioned)).contents
        tensor, flags = managed.tensor, int(managed.flags)
    else:
        tensor, flags = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents, 0
    dtype = _dtype(tensor.code, tensor.bits, tensor.lanes, name)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim)) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    return Exported(address, shape, strides, dtype, tensor.device_id, bool(flags & _READ_ONLY), capsule)


class _Tensor(ctypes.Structure):
    """DLTensor, which is also the beginning of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def _is_valid(capsule: Any, name: bytes) -> bool:
    function = ctypes.pythonapi.PyCapsule_IsValid
    function.argtypes, function.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
    return bool(function(capsule, name))


def _pointer(capsule: Any, name: bytes) -> int:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    function.argtypes, function.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    return int(function(capsule, name))


def _dtype(code: int, bits: int, lanes: int, name: str) -> Dtype:
    if lanes == 1 and code in _KINDS and bits % 8 == 0 and bits:
        return dtype_of(f"{_KINDS[code]}{bits}")
    if lanes == 1 and (code, bits) in _NAMED:
        return named(_NAMED[code, bits])
    raise TypeError(f"{name} has a dtype that has no name here (DLPack code {code}, {bits} bits): view it as bytes")
