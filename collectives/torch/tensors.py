"""Tensors as arrays for communicators, over the tensors' own memory if possible.

Invariant: unsupported tensors are refused with TypeError before anything is sent. For a tensor that receives a result,
the array comes with a function that copies the result to the tensor, or with None if the array is the tensor's own
memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from collectives.arrays.dtypes import Dtype, dtype_names
from collectives.arrays.exporters import torch as exporter
from collectives.arrays.exporters.reached import Array
from collectives.arrays.exporters.torch import tensor_of as tensor_of  # noqa: PLC0414  # for those who import it from here

Finish: TypeAlias = "Callable[[], None] | None"

_DTYPES: Final = {kind: dtype for kind, dtype in exporter.table().items() if dtype in dtype_names()}
_USUAL: Final = (torch.Tensor, torch.nn.Parameter)
# Data that is only moved may have any dtype; ranks compare the size of its elements.
_RAW: Final[dict[int, Dtype]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}


class Written(NamedTuple):
    """The array to which a tensor's result is written, and a function `finish` that copies the result to the tensor.

    `finish` is None if the array is the tensor's own memory.
    """

    array: Array
    finish: Finish


def is_cuda(tensor: Any) -> bool:
    """Whether `tensor` is a tensor on a CUDA device; False for any other object."""
    return bool(getattr(tensor, "is_cuda", False))


def check(tensor: Any) -> None:
    """Raises TypeError if `tensor` is not a tensor, or if a collective could not write its elements."""
    _plain(tensor)


def reading(tensor: Any, *, moved: bool = False) -> Array:
    """Returns the elements of `tensor` as a NumPy array, in C order.

    `moved`: the collective only moves elements, so any dtype is accepted.
    """
    return _array(_compact(_plain(tensor)), moved)


def unowned(tensor: Any) -> Array:
    """Returns a NumPy array over the memory of `tensor`, which does not keep the tensor alive.

    `tensor` has to be contiguous, in host memory, and of a dtype that can be reduced. Raises TypeError otherwise.
    """
    return exporter.unowned(_array(_plain(tensor), False))


def writing(tensor: Any, *, moved: bool = False) -> Written:
    """Returns a NumPy array that a collective reads and overwrites: over the memory of `tensor`, or a copy of it.

    Also returns a function that copies the result from such a copy to `tensor`; None if there is no copy. `moved`: the
    collective only moves elements, so any dtype is accepted.
    """
    plain = _plain(tensor)
    if _direct(plain):
        return Written(_array(plain, moved), None)
    copy = _compact(plain)

    def finish() -> None:
        assign(plain, copy)

    return Written(_array(copy, moved), finish)


def filling(tensor: Any, *, moved: bool = False) -> Written:
    """Returns a NumPy array that a collective overwrites without reading it: the memory of `tensor`, or a new array.

    Also returns a function that copies the result from a new array to `tensor`; None if the array is the tensor's
    memory. `moved`: the collective only moves elements, so any dtype is accepted.
    """
    plain = _plain(tensor)
    if _direct(plain):
        return Written(_array(plain, moved), None)
    fresh = torch.empty(plain.shape, dtype=plain.dtype)

    def finish() -> None:
        assign(plain, fresh)

    return Written(_array(fresh, moved), finish)


def joined(tensors: Sequence[Any], *, moved: bool = False) -> Array:
    """Returns one NumPy array with the elements of all `tensors`, stacked on a new first axis.

    If the tensors are neighbours in memory, the array is this memory, otherwise a copy. Tensors have the same shape and
    dtype. `moved`: the collective only moves elements, so any dtype is accepted.
    """
    plain = [_plain(tensor) for tensor in tensors]
    whole = _neighbours(plain)
    return _array(torch.stack(plain) if whole is None else whole, moved)


def spread(tensors: Sequence[Any], *, moved: bool = False) -> Written:
    """Returns one NumPy array to which a collective writes the results for all `tensors`, stacked on a new first axis.

    If the tensors are neighbours in memory, the array is this memory. Otherwise the array is new, and a function that
    copies the results to the tensors is returned, too. Tensors have the same shape and dtype. `moved`: the collective
    only moves elements, so any dtype is accepted.
    """
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
    """Copies the elements of `array` into these tensors, one after the other. They have the dtype of `array`."""
    source, start = tensor_of(array), 0
    for tensor in tensors:
        plain = _plain(tensor)
        part = source[start : start + plain.numel()]
        start += plain.numel()
        if part.dtype != plain.dtype:
            part = part.view(plain.dtype)
        assign(plain, part.view(plain.shape))


def assign(tensor: Any, values: Any) -> None:
    """Copies `values` into `tensor`, even if it is an inference tensor, which can be written only in inference mode."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(values)


def one(tensors: Any, what: str) -> Any:
    """Returns the only tensor of a list, or `tensors` itself if it is a tensor.

    Raises ValueError, whose text begins with `what`, if the list does not have exactly one tensor.
    """
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what}: give one tensor, not a list of {len(tensors)}")
    return tensors[0]


def same(tensors: Sequence[Any]) -> bool:
    """Whether all these tensors have the same shape and dtype."""
    first = tensors[0]
    return all(tensor.shape == first.shape and tensor.dtype == first.dtype for tensor in tensors)


def _plain(tensor: Any) -> Any:
    """`tensor` without its gradient history. TypeError unless it is a dense tensor in host memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is needed, not {type(tensor).__name__}")
    if tensor.is_nested or type(tensor) not in _USUAL:
        exporter.check(tensor, "tensor")
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"the tensor is sparse ({tensor.layout}): give tensor.to_dense(), or gather its indices and values"
        )
    if not tensor.is_cpu:
        raise TypeError(
            f"the tensor lies on {tensor.device}, but this call is for tensors in host memory, as are calls that have "
            'other tensors there. Give tensor.cpu(), or use a group of NCCL: new_group(backend="nccl")'
        )
    return tensor.detach() if tensor.requires_grad else tensor


def _direct(plain: Any) -> bool:
    """Whether the memory of `plain` holds its elements in C order, without a lazy conjugation or negation."""
    return plain.is_contiguous() and not plain.is_conj() and not plain.is_neg()


def _compact(plain: Any) -> Any:
    """`plain`, or a copy of it that can be used directly."""
    return plain.contiguous().resolve_conj().resolve_neg()


def _array(plain: Any, moved: bool) -> Array:
    """An array over the memory of the tensor `plain`; the array keeps the tensor alive.

    `moved`: nothing is computed with the elements, so any dtype is accepted, except quantized ones.
    """
    dtype: Dtype | None = _DTYPES.get(plain.dtype)
    if dtype is None and moved and not plain.is_quantized:
        dtype = _RAW.get(plain.dtype.itemsize)
    if dtype is None:
        done = "sent" if moved else "reduced"
        raise TypeError(f"tensors of dtype {plain.dtype} cannot be {done}: give tensor.to(another)")
    return exporter.memory(plain, dtype, "tensor")


def _neighbours(tensors: Sequence[Any]) -> Any:
    """`tensors` as one stacked tensor, without a copy, if they lie one after the other in one storage; else None."""
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
