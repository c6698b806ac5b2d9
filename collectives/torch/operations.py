"""Translates calls of a process group to calls of its communicator. One method for each call also checks the tensors.

Invariant: this module sends nothing. For mistakes that a rank can detect without the other ranks, it raises TypeError
or ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from collectives.arrays.array import Array
from collectives.torch.checks import (
    check_fit,
    check_gathered,
    check_lists,
    check_scattered,
    everyones,
    exchanged_counts,
    fill,
)
from collectives.torch.reductions import factor_of, name_of, reduction
from collectives.torch.tensors import filling, flat, joined, pour, reading, same, spread, writing

After: TypeAlias = "Callable[[Any], None] | None"


class Operation(NamedTuple):
    """One collective of a process group, translated to a call of a communicator: method `name`, and arguments.

    `tensors`: the tensors of the collective. `after` copies the result to the tensors; None if no copy is necessary.
    `device`: the device of CUDA tensors; None for tensors in host memory. Streams order operations on CUDA tensors.
    """

    name: str
    args: tuple[Any, ...]
    tensors: Sequence[Any]
    after: After = None
    out: Array | Sequence[Array] | None = None
    device: Any = None


class Operations:
    """Translates the collectives that torch calls on a process group to calls of a communicator.

    `rank`, `size`: this rank's number, and the number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank: Final = rank
        self._size: Final = size

    # --- reductions

    def allreduce(self, tensor: Any, op: Any) -> Operation:
        array, finish = writing(tensor)
        return Operation("allreduce", (array, reduction(op, array)), (tensor,), after_all(finish), array)

    def allreduce_coalesced(self, tensors: Sequence[Any], op: Any) -> list[Operation]:
        """One operation for all tensors."""
        if not tensors:
            return []
        written = [writing(tensor) for tensor in tensors]
        arrays = [array for array, _ in written]
        after = after_all(*(finish for _, finish in written))
        return [Operation("allreduce_many", (arrays, reduction(op, *arrays)), tensors, after, arrays)]

    def reduce(self, tensor: Any, op: Any, root: int) -> Operation:
        if root != self._rank:
            factor = factor_of(op)
            array = reading(tensor if factor is None else tensor * factor)
            return Operation("reduce", (array, name_of(op), root), (tensor,))
        array, finish = writing(tensor)
        return Operation("reduce", (array, reduction(op, array), root), (tensor,), after_all(finish), array)

    def reduce_scatter(self, output: Any, input_list: Any, op: Any) -> Operation:
        inputs = everyones(input_list, self._size, "reduce_scatter")
        check_fit(output, inputs[self._rank], "reduce_scatter", f"the input for rank {self._rank}")
        if same(inputs):
            return self._scattered(output, joined(inputs), op)
        whole = flat(inputs)
        start = sum(part.numel() for part in inputs[: self._rank])
        mine = whole[start : start + output.numel()]

        def after(_: Any) -> None:
            pour(mine, (output,))

        return Operation("allreduce", (whole, reduction(op, whole)), (output,), after, whole)

    def reduce_scatter_single(self, output: Any, inp: Any, op: Any) -> Operation:
        check_scattered(output, inp, self._size)
        return self._scattered(output, reading(inp), op)

    def _scattered(self, output: Any, array: Array, op: Any) -> Operation:
        inp = array.reshape(-1)
        if factor_of(op) is not None:
            inp = inp.copy()
        name = reduction(op, inp)
        out, finish = filling(output)
        if np.may_share_memory(inp, out):  # the output is this rank's part of the input
            inp = inp.copy()
        return Operation("reduce_scatter", (inp, name), (output,), after_all(finish), out.reshape(-1))

    # --- moving data

    def broadcast(self, tensor: Any, root: int) -> Operation:
        array, finish = (writing if root == self._rank else filling)(tensor, moved=True)
        return Operation("broadcast", (array, root), (tensor,), after_all(finish))

    def allgather(self, output_list: Any, tensor: Any) -> Operation:
        outputs = everyones(output_list, self._size, "all_gather")
        check_fit(tensor, outputs[self._rank], "all_gather", f"the output of rank {self._rank}")
        if same(outputs):
            return self._gathered(outputs, tensor, *spread(outputs, moved=True))

        def after(result: Any) -> None:
            fill(result, outputs, "all_gather")

        return Operation("allgatherv", (reading(tensor, moved=True).reshape(-1),), outputs, after)

    def all_gather_single(self, output: Any, inp: Any) -> Operation:
        check_gathered(output, inp, self._size)
        return self._gathered((output,), inp, *filling(output, moved=True))

    def _gathered(self, outputs: Sequence[Any], tensor: Any, array: Array, finish: Any) -> Operation:
        out = array.reshape(self._size, -1)
        inp = reading(tensor, moved=True).reshape(-1)
        if np.may_share_memory(inp, out):  # the input is this rank's part of the output
            inp = inp.copy()
        return Operation("allgather", (inp,), outputs, after_all(finish), out)

    def gather(self, output_list: Any, tensor: Any, root: int) -> Operation:
        outputs: Sequence[Any] = ()
        if root == self._rank:
            outputs = everyones(output_list, self._size, "gather")
            for rank, output in enumerate(outputs):
                check_fit(tensor, output, "gather", f"the output for rank {rank}")

        def after(result: Any) -> None:
            if outputs:
                pour(result.reshape(-1), outputs)

        return Operation("gather", (reading(tensor, moved=True), root), outputs, after)

    def scatter(self, output: Any, input_list: Any, root: int) -> Operation:
        whole = None
        if root == self._rank:
            inputs = everyones(input_list, self._size, "scatter")
            for rank, part in enumerate(inputs):
                check_fit(output, part, "scatter", f"the input for rank {rank}")
            whole = joined(inputs, moved=True)

        def after(result: Any) -> None:
            fill(result.reshape(-1), (output,), "scatter")

        return Operation("scatter", (whole, root), (output,), after)

    def alltoall(self, output_tensors: Any, input_tensors: Any) -> Operation:
        outputs, inputs = list(output_tensors), list(input_tensors)
        check_lists(outputs, inputs, self._size)
        counts = [tensor.numel() for tensor in inputs]
        return self._exchanged(outputs, flat(inputs, moved=True), counts)

    def all_to_all_single(self, output: Any, inp: Any, output_splits: Any, input_splits: Any) -> Operation:
        counts = exchanged_counts(output, inp, output_splits, input_splits, self._size, self._rank)
        array = reading(inp, moved=True).reshape(-1)
        if counts is not None:
            return self._exchanged((output,), array, counts)
        out, finish = filling(output, moved=True)
        if np.may_share_memory(array, out):
            array = array.copy()
        return Operation("alltoall", (array,), (output,), after_all(finish), out.reshape(-1))

    def _exchanged(self, outputs: Sequence[Any], array: Array, counts: list[int]) -> Operation:
        def after(result: Any) -> None:
            fill(result, outputs, "all_to_all")

        return Operation("alltoallv", (array, counts), outputs, after)


def after_all(*finishes: Callable[[], Any] | None) -> After:
    """The function to call when an operation has ended, or None."""
    wanted = [finish for finish in finishes if finish is not None]
    if not wanted:
        return None

    def after(_: Any) -> None:
        for finish in wanted:
            finish()

    return after
