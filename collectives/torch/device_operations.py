"""Translates calls of a process group on CUDA tensors to calls of its communicator.

Invariant: all data stays on the device, and all copies are operations of torch, in torch's current stream. For mistakes
that a rank can detect without the other ranks, TypeError or ValueError is raised before anything is issued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from collectives.arrays.exporters.torch import check
from collectives.native.errors import DesyncError
from collectives.torch.checks import (
    check_fit,
    check_gathered,
    check_lists,
    check_scattered,
    everyones,
    exchanged_counts,
)
from collectives.torch.operations import After, Operation, after_all
from collectives.torch.reductions import factor_of, name_of
from collectives.torch.tensors import same

_INSTEAD: Final = "set COLLECTIVES_TORCH_MESSAGES=host"  # for messages that NCCL does not have


class DeviceOperations:
    """Translates torch's collectives on tensors of the CUDA device `device` to calls of a communicator.

    `rank`, `size`: this rank's number, and the number of ranks.
    """

    def __init__(self, rank: int, size: int, device: Any) -> None:
        self._rank: Final = rank
        self._size: Final = size
        self._device: Final = device

    def _operation(
        self, name: str, args: tuple[Any, ...], tensors: Sequence[Any], after: After = None, out: Any = None
    ) -> Operation:
        return Operation(name, args, tensors, after, out, self._device)

    # --- reductions

    def allreduce(self, tensor: Any, op: Any) -> Operation:
        array, finish = _written(tensor)
        return self._reduced("allreduce", (array,), op, (), (tensor,), array, finish)

    def allreduce_coalesced(self, tensors: Sequence[Any], op: Any) -> list[Operation]:
        """One operation for all tensors."""
        if not tensors:
            return []
        arrays, finishes = zip(*map(_written, tensors), strict=True)
        name = name_of(op)
        for array in arrays:
            self._scale(array, op)
        return [self._operation("allreduce_many", (list(arrays), name), tensors, after_all(*finishes), list(arrays))]

    def reduce(self, tensor: Any, op: Any, root: int) -> Operation:
        array, finish = _written(tensor)
        if root == self._rank:
            return self._reduced("reduce", (array,), op, (root,), (tensor,), array, finish)
        if factor_of(op) is not None:
            array = array.clone()
        return self._reduced("reduce", (array,), op, (root,), (tensor,), None, None)

    def reduce_scatter(self, output: Any, input_list: Any, op: Any) -> Operation:
        inputs = everyones(input_list, self._size, "reduce_scatter")
        check_fit(output, inputs[self._rank], "reduce_scatter", f"the input for rank {self._rank}")
        whole = torch.cat([part.reshape(-1) for part in inputs])
        out, finish = _filled(output)
        if same(inputs):
            return self._reduced("reduce_scatter", (whole,), op, (), (output,), out, finish)
        self._scale(whole, op)
        counts = [part.numel() for part in inputs]
        return self._operation("reduce_scatterv", (whole, counts, name_of(op)), (output,), after_all(finish), out)

    def reduce_scatter_single(self, output: Any, inp: Any, op: Any) -> Operation:
        check_scattered(output, inp, self._size)
        out, finish = _filled(output)
        whole = _apart(inp.reshape(-1), out)
        if factor_of(op) is not None and whole.data_ptr() == inp.data_ptr():
            whole = whole.clone()
        return self._reduced("reduce_scatter", (whole,), op, (), (output,), out, finish)

    def _reduced(
        self,
        name: str,
        args: tuple[Any, ...],
        op: Any,
        more: tuple[Any, ...],
        tensors: Sequence[Any],
        out: Any,
        finish: Callable[[], None] | None,
    ) -> Operation:
        array = args[0]
        self._scale(array, op)
        return self._operation(name, (*args, name_of(op), *more), tensors, after_all(finish), out)

    def _scale(self, array: Any, op: Any) -> None:
        factor = factor_of(op)
        if factor is not None:
            array.mul_(factor)

    # --- moving data

    def broadcast(self, tensor: Any, root: int) -> Operation:
        array, finish = (_written if root == self._rank else _filled)(tensor)
        return self._operation("broadcast", (array, root), (tensor,), after_all(finish))

    def allgather(self, output_list: Any, tensor: Any) -> Operation:
        outputs = everyones(output_list, self._size, "all_gather")
        check_fit(tensor, outputs[self._rank], "all_gather", f"the output of rank {self._rank}")
        inp = tensor.reshape(-1)
        if not same(outputs):
            return self._operation("allgatherv", (inp,), outputs, lambda result: _pour(result, outputs, "all_gather"))
        whole = inp.new_empty((self._size, inp.numel()))
        return self._operation("allgather", (inp,), outputs, lambda _: _pour(whole, outputs, "all_gather"), whole)

    def all_gather_single(self, output: Any, inp: Any) -> Operation:
        check_gathered(output, inp, self._size)
        out, finish = _filled(output)
        return self._operation(
            "allgather", (_apart(inp.reshape(-1), out),), (output,), after_all(finish), out.view(self._size, -1)
        )

    def gather(self, output_list: Any, tensor: Any, root: int) -> Operation:
        outputs: Sequence[Any] = ()
        if root == self._rank:
            outputs = everyones(output_list, self._size, "gather")
            for rank, output in enumerate(outputs):
                check_fit(tensor, output, "gather", f"the output for rank {rank}")
        after: After = (lambda result: _pour(result, outputs, "gather")) if outputs else None
        return self._operation("gather", (tensor.reshape(-1), root), outputs, after)

    def scatter(self, output: Any, input_list: Any, root: int) -> Operation:
        whole = None
        if root == self._rank:
            inputs = everyones(input_list, self._size, "scatter")
            for rank, part in enumerate(inputs):
                check_fit(output, part, "scatter", f"the input for rank {rank}")
            whole = torch.stack([part.reshape(-1) for part in inputs])
        return self._operation("scatter", (whole, root), (output,), lambda result: _pour(result, (output,), "scatter"))

    def alltoall(self, output_tensors: Any, input_tensors: Any) -> Operation:
        outputs, inputs = list(output_tensors), list(input_tensors)
        check_lists(outputs, inputs, self._size)
        whole = torch.cat([tensor.reshape(-1) for tensor in inputs])
        return self._exchanged(outputs, whole, [tensor.numel() for tensor in inputs])

    def all_to_all_single(self, output: Any, inp: Any, output_splits: Any, input_splits: Any) -> Operation:
        counts = exchanged_counts(output, inp, output_splits, input_splits, self._size, self._rank)
        flat = inp.reshape(-1)
        if counts is not None:
            return self._exchanged((output,), flat, counts)
        out, finish = _filled(output)
        return self._operation("alltoall", (_apart(flat, out),), (output,), after_all(finish), out.view(-1))

    def _exchanged(self, outputs: Sequence[Any], whole: Any, counts: list[int]) -> Operation:
        return self._operation(
            "alltoallv", (whole, counts), outputs, lambda result: _pour(result, outputs, "all_to_all")
        )

    # --- messages, by NCCL

    def send(self, tensor: Any, dest: int, tag: int) -> Operation:
        """ValueError if `tag` is not 0: NCCL's messages have no tags."""
        _check_tag(tag)
        check(tensor, "tensor")
        array, _ = _written(tensor)
        return self._operation("send", (array, dest), (tensor,))

    def recv(self, tensor: Any, source: int | None, tag: int) -> Operation:
        """ValueError if `tag` is not 0, or if `source` is None: NCCL receives from a rank that is named."""
        _check_tag(tag)
        if source is None:
            raise ValueError(f"a CUDA tensor is received by NCCL from a rank that is named: give src, or {_INSTEAD}")
        check(tensor, "tensor")
        array, finish = _filled(tensor)
        return self._operation("recv", (array, source), (tensor,), after_all(finish))


def _check_tag(tag: int) -> None:
    if tag != 0:
        raise ValueError(f"tag is {tag}, but NCCL's messages have no tags: give 0, or {_INSTEAD}")


def _written(tensor: Any) -> tuple[Any, Callable[[], None] | None]:
    """A contiguous tensor that an operation reads and overwrites, and what copies it back; None if it is `tensor`."""
    plain = tensor.detach()
    if plain.is_contiguous() and not plain.is_conj() and not plain.is_neg():
        return plain, None
    copy = plain.contiguous().resolve_conj().resolve_neg()
    return copy, lambda: plain.copy_(copy)


def _filled(tensor: Any) -> tuple[Any, Callable[[], None] | None]:
    """The same for an operation that only overwrites it."""
    plain = tensor.detach()
    if plain.is_contiguous() and not plain.is_conj() and not plain.is_neg():
        return plain, None
    fresh = torch.empty(plain.shape, dtype=plain.dtype, device=plain.device)
    return fresh, lambda: plain.copy_(fresh)


def _apart(inp: Any, out: Any) -> Any:
    """`inp`, or a copy of it if it is a part of the result's memory."""
    same_storage = inp.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    return inp.clone() if same_storage else inp


def _pour(result: Any, outputs: Sequence[Any], what: str) -> None:
    """Copy the elements of `result` to these tensors, one after the other. DesyncError if the numbers differ."""
    flat, start = result.reshape(-1), 0
    if flat.numel() != sum(output.numel() for output in outputs):
        raise DesyncError(f"{what}: the other ranks sent {flat.numel()} elements, which do not fit the outputs")
    for output in outputs:
        part = flat[start : start + output.numel()]
        start += output.numel()
        output.detach().copy_(part.view(output.shape))
