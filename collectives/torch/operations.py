"""Translates calls of a process group to calls of its communicator. One method for each call also checks the tensors.

Invariant: this module sends nothing. For mistakes that a rank can detect without the other ranks, it raises TypeError
or ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from collectives.arrays.array import Array
from collectives.torch.checks import check_fit, fill, form, rows_of
from collectives.torch.reductions import averages_integers, factor_of, reduction
from collectives.torch.tensors import filling, flat, joined, one, pour, reading, same, spread, writing

After: TypeAlias = "Callable[[Any], None] | None"


class Operation(NamedTuple):
    """One collective of a process group, translated to a call of a communicator's method: its name and arguments.

    `tensors`: the tensors of the collective. `after` copies the result to the tensors; None if that is not necessary.
    `device`: the device of CUDA tensors, whose operations are ordered by streams; None for tensors in host memory.
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
        reduces = reduction(op, self._size, array.dtype, array)
        after = _after(finish) if reduces.divisor == 1 else _after(lambda: reduces.finish(array), finish)
        return Operation("allreduce", (array, reduces.op), (tensor,), after, array)

    def allreduce_coalesced(self, tensors: Sequence[Any], op: Any) -> list[Operation]:
        """Returns one operation that reduces all tensors; for an average of integers, one operation for each tensor."""
        written = [writing(tensor) for tensor in tensors]
        arrays = [array for array, _ in written]
        if not arrays or any(averages_integers(op, array.dtype) for array in arrays):
            return [self.allreduce(tensor, op) for tensor in tensors]
        reduces = reduction(op, self._size, arrays[0].dtype, *arrays)
        after = _after(*(finish for _, finish in written))
        return [Operation("allreduce_many", (arrays, reduces.op), tensors, after, arrays)]

    def reduce(self, tensor: Any, op: Any, root: int) -> Operation:
        if root != self._rank:
            factor = factor_of(op)
            array = reading(tensor if factor is None else tensor * factor)
            reduces = reduction(op, self._size, array.dtype)
            return Operation("reduce", (array, reduces.op, root), (tensor,))
        array, finish = writing(tensor)
        reduces = reduction(op, self._size, array.dtype, array)
        after = _after(lambda: reduces.finish(array), finish)
        return Operation("reduce", (array, reduces.op, root), (tensor,), after, array)

    def reduce_scatter(self, output: Any, input_list: Any, op: Any) -> Operation:
        inputs = self._everyones(input_list, "reduce_scatter")
        check_fit(output, inputs[self._rank], "reduce_scatter", f"the input for rank {self._rank}")
        if same(inputs):
            return self._scattered(output, joined(inputs), op)
        whole = flat(inputs)
        reduces = reduction(op, self._size, whole.dtype, whole)
        start = sum(part.numel() for part in inputs[: self._rank])
        mine = whole[start : start + output.numel()]

        def after(_: Any) -> None:
            reduces.finish(mine)
            pour(mine, (output,))

        return Operation("allreduce", (whole, reduces.op), (output,), after, whole)

    def reduce_scatter_single(self, output: Any, inp: Any, op: Any) -> Operation:
        if inp.numel() != self._size * output.numel() or output.dtype != inp.dtype:
            raise ValueError(
                f"reduce_scatter_tensor: the input needs {self._size} times the elements of the output and its dtype, "
                f"but they are {form(inp)} and {form(output)}"
            )
        return self._scattered(output, reading(inp), op)

    def _scattered(self, output: Any, array: Array, op: Any) -> Operation:
        inp = array.reshape(-1)
        if factor_of(op) is not None:
            inp = inp.copy()
        reduces = reduction(op, self._size, inp.dtype, inp)
        out, finish = filling(output)
        if np.may_share_memory(inp, out):  # the output is this rank's part of the input
            inp = inp.copy()
        after = _after(finish) if reduces.divisor == 1 else _after(lambda: reduces.finish(out), finish)
        return Operation("reduce_scatter", (inp, reduces.op), (output,), after, out.reshape(-1))

    # --- moving data

    def broadcast(self, tensor: Any, root: int) -> Operation:
        array, finish = (writing if root == self._rank else filling)(tensor, moved=True)
        return Operation("broadcast", (array, root), (tensor,), _after(finish))

    def allgather(self, output_list: Any, tensor: Any) -> Operation:
        outputs = self._everyones(output_list, "all_gather")
        check_fit(tensor, outputs[self._rank], "all_gather", f"the output of rank {self._rank}")
        if same(outputs):
            return self._gathered(outputs, tensor, *spread(outputs, moved=True))

        def after(result: Any) -> None:
            fill(result, outputs, "all_gather")

        return Operation("allgatherv", (reading(tensor, moved=True).reshape(-1),), outputs, after)

    def all_gather_single(self, output: Any, inp: Any) -> Operation:
        if output.numel() != self._size * inp.numel() or output.dtype != inp.dtype:
            raise ValueError(
                f"all_gather_into_tensor: the output needs {self._size} times the elements of the input and its dtype, "
                f"but they are {form(output)} and {form(inp)}"
            )
        return self._gathered((output,), inp, *filling(output, moved=True))

    def _gathered(self, outputs: Sequence[Any], tensor: Any, array: Array, finish: Any) -> Operation:
        out = array.reshape(self._size, -1)
        inp = reading(tensor, moved=True).reshape(-1)
        if np.may_share_memory(inp, out):  # the input is this rank's part of the output
            inp = inp.copy()
        return Operation("allgather", (inp,), outputs, _after(finish), out)

    def gather(self, output_list: Any, tensor: Any, root: int) -> Operation:
        outputs: Sequence[Any] = ()
        if root == self._rank:
            outputs = self._everyones(output_list, "gather")
            for rank, output in enumerate(outputs):
                check_fit(tensor, output, "gather", f"the output for rank {rank}")

        def after(result: Any) -> None:
            if outputs:
                pour(result.reshape(-1), outputs)

        return Operation("gather", (reading(tensor, moved=True), root), outputs, after)

    def scatter(self, output: Any, input_list: Any, root: int) -> Operation:
        whole = None
        if root == self._rank:
            inputs = self._everyones(input_list, "scatter")
            for rank, part in enumerate(inputs):
                check_fit(output, part, "scatter", f"the input for rank {rank}")
            whole = joined(inputs, moved=True)

        def after(result: Any) -> None:
            fill(result.reshape(-1), (output,), "scatter")

        return Operation("scatter", (whole, root), (output,), after)

    def alltoall(self, output_tensors: Any, input_tensors: Any) -> Operation:
        outputs, inputs = list(output_tensors), list(input_tensors)
        for what, tensors in (("outputs", outputs), ("inputs", inputs)):
            if len(tensors) != self._size:
                raise ValueError(f"all_to_all: {len(tensors)} {what} were given for {self._size} ranks")
        counts = [tensor.numel() for tensor in inputs]
        return self._exchanged(outputs, flat(inputs, moved=True), counts)

    def all_to_all_single(self, output: Any, inp: Any, output_splits: Any, input_splits: Any) -> Operation:
        receives = rows_of(output, output_splits, self._size, "output")
        sends = rows_of(inp, input_splits, self._size, "input")
        array = reading(inp, moved=True).reshape(-1)
        if output_splits or input_splits:
            row = math.prod(inp.shape[1:])
            if row != math.prod(output.shape[1:]) or inp.dtype != output.dtype:
                raise ValueError(f"all_to_all_single: rows of {form(inp)} do not fit into those of {form(output)}")
            if receives[self._rank] != sends[self._rank]:
                raise ValueError(
                    f"all_to_all_single: rank {self._rank} sends itself {sends[self._rank]} rows, but expects "
                    f"{receives[self._rank]}"
                )
            return self._exchanged((output,), array, [rows * row for rows in sends])
        check_fit(inp, output, "all_to_all_single", "the output")
        out, finish = filling(output, moved=True)
        if np.may_share_memory(array, out):
            array = array.copy()
        return Operation("alltoall", (array,), (output,), _after(finish), out.reshape(-1))

    def _exchanged(self, outputs: Sequence[Any], array: Array, counts: list[int]) -> Operation:
        def after(result: Any) -> None:
            fill(result, outputs, "all_to_all")

        return Operation("alltoallv", (array, counts), outputs, after)

    def _everyones(self, lists: Any, what: str) -> list[Any]:
        """The list of tensors, one for each rank. `lists`: that list itself, or a list that has only that list."""
        tensors = list(lists if lists and isinstance(lists[0], torch.Tensor) else one(lists, what))
        if len(tensors) != self._size:
            raise ValueError(f"{what}: a list of {len(tensors)} tensors was given for {self._size} ranks")
        return tensors


def _after(*finishes: Callable[[], None] | None) -> After:
    """The function to call when an operation has ended, or None."""
    wanted = [finish for finish in finishes if finish is not None]
    if not wanted:
        return None

    def after(_: Any) -> None:
        for finish in wanted:
            finish()

    return after
