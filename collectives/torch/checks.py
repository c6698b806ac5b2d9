"""Checks whether tensors of one call fit together, and whether received data fits into them.

Invariant: errors that this rank can detect alone raise ValueError before anything is sent; errors in received data
raise DesyncError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from collectives.arrays.array import Array
from collectives.native.errors import DesyncError
from collectives.torch.tensors import one, pour


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


def exchanged_counts(
    output: Any, inp: Any, output_splits: Any, input_splits: Any, size: int, rank: int
) -> list[int] | None:
    """Returns how many elements `all_to_all_single` sends to each of `size` ranks; None if there are no splits.

    Without splits all parts are equal. Raises ValueError if the tensors `output` and `inp` do not fit together, or if
    the splits do not fit the tensors.
    """
    receives = rows_of(output, output_splits, size, "output")
    sends = rows_of(inp, input_splits, size, "input")
    if not output_splits and not input_splits:
        check_fit(inp, output, "all_to_all_single", "the output")
        return None
    row = math.prod(inp.shape[1:])
    if row != math.prod(output.shape[1:]) or inp.dtype != output.dtype:
        raise ValueError(f"all_to_all_single: rows of {form(inp)} do not fit into those of {form(output)}")
    if receives[rank] != sends[rank]:
        raise ValueError(
            f"all_to_all_single: rank {rank} sends itself {sends[rank]} rows, but expects {receives[rank]}"
        )
    return [rows * row for rows in sends]


def everyones(lists: Any, size: int, what: str) -> list[Any]:
    """Returns a list with one tensor for each of `size` ranks.

    `lists`: the list to return, or a list whose only item is the list to return. Raises ValueError if the number of
    tensors is not `size`. `what`: the name of the operation, for the error.
    """
    tensors = list(lists if lists and isinstance(lists[0], torch.Tensor) else one(lists, what))
    if len(tensors) != size:
        raise ValueError(f"{what}: a list of {len(tensors)} tensors was given for {size} ranks")
    return tensors


def check_lists(outputs: Sequence[Any], inputs: Sequence[Any], size: int) -> None:
    """Raises ValueError unless `all_to_all` got one output and one input for each of `size` ranks."""
    for what, tensors in (("outputs", outputs), ("inputs", inputs)):
        if len(tensors) != size:
            raise ValueError(f"all_to_all: {len(tensors)} {what} were given for {size} ranks")


def check_scattered(output: Any, inp: Any, size: int) -> None:
    """Raises ValueError unless `inp` has the dtype of `output`, and `size` times as many elements."""
    if inp.numel() != size * output.numel() or output.dtype != inp.dtype:
        raise ValueError(
            f"reduce_scatter_tensor: the input needs {size} times the elements of the output and its dtype, "
            f"but they are {form(inp)} and {form(output)}"
        )


def check_gathered(output: Any, inp: Any, size: int) -> None:
    """Raises ValueError unless `output` has the dtype of `inp`, and room for the `inp` of each of `size` ranks."""
    if output.numel() != size * inp.numel() or output.dtype != inp.dtype:
        raise ValueError(
            f"all_gather_into_tensor: the output needs {size} times the elements of the input and its dtype, "
            f"but they are {form(output)} and {form(inp)}"
        )


def check_fit(tensor: Any, other: Any, what: str, name: str) -> None:
    """Raises ValueError if `tensor` and `other` differ in dtype or number of elements.

    For the error: `what` is the name of the operation, and `name` describes the tensor `other`.
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
