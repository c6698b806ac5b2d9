"""Checks whether tensors of one call fit together, and whether received data fits into them.

Invariant: errors that this rank can detect alone raise ValueError before anything is sent; errors in received data
raise DesyncError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectives.arrays.array import Array
from collectives.native.errors import DesyncError
from collectives.torch.tensors import pour


def rows_of(tensor: Any, splits: Any, size: int, what: str) -> list[int]:
    """Returns how many rows of `tensor` each of `size` ranks gets: `splits`, or equal numbers if `splits` is empty.

    `what`: the name of the operation, for errors. Raises ValueError if `splits` do not add up to the number of rows, or
    if the rows cannot be divided equally.
    """
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if rows % size or not tensor.dim():
            raise ValueError(f"all_to_all_single: {what} {form(tensor)} cannot be divided evenly among {size} ranks")
        return [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(f"all_to_all_single: {what}_split_sizes {list(splits)} do not divide {form(tensor)}")
    return list(splits)


def check_fit(tensor: Any, other: Any, what: str, name: str) -> None:
    """Raises ValueError if `tensor` and `other` differ in dtype or number of elements.

    `what` and `name` are for the error: the name of the operation, and that of `other`.
    """
    if tensor.numel() != other.numel() or tensor.dtype != other.dtype:
        raise ValueError(f"{what}: {name} is {form(other)}, which does not fit {form(tensor)}")


def fill(result: Array, outputs: Sequence[Any], what: str) -> None:
    """Copies the received data `result` into the tensors `outputs`, one after the other.

    Raises DesyncError if the sizes differ. `what`: the name of the operation, for the error.
    """
    wanted = sum(output.numel() for output in outputs)
    if result.size != wanted or result.dtype.itemsize != outputs[0].element_size():
        raise DesyncError(
            f"{what}: the other ranks sent {result.size} elements of {result.dtype}, but there is room for {wanted} of "
            f"{outputs[0].dtype}"
        )
    pour(result, outputs)


def form(tensor: Any) -> str:
    """Shape and dtype, for messages."""
    return f"{tuple(tensor.shape)} {tensor.dtype}"
