"""Tensors as the arrays that communicators take: the same memory wherever that can be.

Invariant: what is refused is refused with TypeError before anything is sent. A tensor that is written comes with a
function that brings the result to it, or with None where it is the memory that was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import torch

from collectives.arrays import Array

Finish: TypeAlias = "Callable[[], None] | None"

_DTYPES: Final = {
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.bool: np.dtype(np.bool_),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}
# What is only moved may be of any dtype; ranks compare its size.
_RAW: Final = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}


class Written(NamedTuple):
    """Memory for a result, and what has to be done when it is there."""

    array: Array
    finish: Finish


def reading(tensor: Any, *, moved: bool = False) -> Array:
    """The elements of `tensor`, in C order. `moved`: nothing is computed with them, so any dtype will do."""
    return _array(_compact(_plain(tensor)), moved)


def writing(tensor: Any, *, moved: bool = False) -> Written:
    """Memory to be read and overwritten: that of `tensor`, or a copy of it."""
    plain = _plain(tensor)
    if _direct(plain):
        return Written(_array(plain, moved), None)
    copy = _compact(plain)

    def finish() -> None:
        assign(plain, copy)

    return Written(_array(copy, moved), finish)


def filling(tensor: Any, *, moved: bool = False) -> Written:
    """Memory to be overwritten: that of `tensor`, or other of its shape."""
    plain = _plain(tensor)
    if _direct(plain):
        return Written(_array(plain, moved), None)
    fresh = torch.empty(plain.shape, dtype=plain.dtype)

    def finish() -> None:
        assign(plain, fresh)

    return Written(_array(fresh, moved), finish)


def joined(tensors: Sequence[Any], *, moved: bool = False) -> Array:
    """Tensors of one shape and dtype, stacked: their own memory where they follow each other in it, else a copy."""
    plain = [_plain(tensor) for tensor in tensors]
    whole = _neighbours(plain)
    return _array(torch.stack(plain) if whole is None else whole, moved)


def spread(tensors: Sequence[Any], *, moved: bool = False) -> Written:
    """Memory, stacked, for results that go to these tensors, of one shape and dtype."""
    plain = [_plain(tensor) for tensor in tensors]
    whole = _neighbours(plain)
    if whole is not None:
        return Written(_array(whole, moved), None)
    fresh = torch.empty((len(plain), *plain[0].shape), dtype=plain[0].dtype)

    def finish() -> None:
        for tensor, part in zip(plain, fresh, strict=True):
            assign(tensor, part)

    return Written(_array(fresh, moved), finish)


def flat(tensors: Sequence[Any], *, moved: bool = False) -> Array:
    """The elements of tensors of one dtype, one after the other."""
    if not tensors:
        raise ValueError("the list of tensors is empty")
    return _array(torch.cat([_plain(tensor).reshape(-1) for tensor in tensors]), moved)


def pour(array: Array, tensors: Sequence[Any]) -> None:
    """Fill these tensors, one after the other, with the elements of `array`, of their dtype."""
    source, start = tensor_of(array), 0
    for tensor in tensors:
        plain = _plain(tensor)
        part = source[start : start + plain.numel()]
        start += plain.numel()
        if part.dtype != plain.dtype:
            part = part.view(plain.dtype)
        assign(plain, part.view(plain.shape))


def assign(tensor: Any, values: Any) -> None:
    """Give it these values, also where it was made in inference mode, which has ended: no other can write it."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(values)


def tensor_of(array: Array) -> Any:
    """A tensor over the memory of `array`."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def one(tensors: Any, what: str) -> Any:
    """The tensor of a list that has to have one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what}: give one tensor, not a list of {len(tensors)}")
    return tensors[0]


def same(tensors: Sequence[Any]) -> bool:
    """Whether all have one shape and dtype."""
    first = tensors[0]
    return all(tensor.shape == first.shape and tensor.dtype == first.dtype for tensor in tensors)


def _plain(tensor: Any) -> Any:
    """`tensor` without its history. Raises TypeError where its elements are not in host memory, one by one."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is needed, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"the tensor is sparse ({tensor.layout}): give tensor.to_dense(), or gather its indices and values"
        )
    if not tensor.is_cpu:
        raise TypeError(
            f"the tensor lies on {tensor.device}: the backend 'collectives' is for tensors in host memory. "
            'Use init_process_group("cpu:gloo,cuda:nccl"), or give tensor.cpu()'
        )
    return tensor.detach() if tensor.requires_grad else tensor


def _direct(plain: Any) -> bool:
    """Whether its memory has its elements in C order, none of them conjugated or negated only when it is read."""
    return plain.is_contiguous() and not plain.is_conj() and not plain.is_neg()


def _compact(plain: Any) -> Any:
    """`plain`, or a copy of it that can be used directly."""
    return plain.contiguous().resolve_conj().resolve_neg()


def _array(plain: Any, moved: bool) -> Array:
    """Over the memory of `plain`, which it keeps alive.

    Not by `plain.numpy()`, after which the tensor could not be resized any more, as FullyShardedDataParallel does.
    """
    dtype = _DTYPES.get(plain.dtype)
    if dtype is None and moved and not plain.is_quantized:
        dtype = _RAW.get(plain.dtype.itemsize)
    if dtype is None:
        done = "sent" if moved else "reduced"
        raise TypeError(f"tensors of dtype {plain.dtype} cannot be {done}: give tensor.to(another)")
    shape = tuple(plain.shape)
    if not plain.numel():
        return np.empty(shape, dtype)
    if dtype.kind == "V":  # bfloat16, which the interface has no name for
        return np.asarray(_Memory(plain, shape, "<i2")).view(dtype)
    return np.asarray(_Memory(plain, shape, dtype.str))


class _Memory:
    """A tensor's memory in NumPy's words."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: Any, shape: tuple[int, ...], kind: str) -> None:
        self._tensor = tensor
        self.__array_interface__ = {"data": (tensor.data_ptr(), False), "shape": shape, "typestr": kind, "version": 3}


def _neighbours(tensors: Sequence[Any]) -> Any:
    """One tensor over the memory of all, stacked, where they lie one after the other in one storage; else None."""
    first = tensors[0]
    size = first.numel() * first.element_size()
    storage = first.untyped_storage().data_ptr()
    for i, tensor in enumerate(tensors):
        if (
            not _direct(tensor)
            or tensor.data_ptr() != first.data_ptr() + i * size
            or tensor.untyped_storage().data_ptr() != storage
        ):
            return None
    shape = (len(tensors), *first.shape)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return first.as_strided(shape, strides, first.storage_offset())
