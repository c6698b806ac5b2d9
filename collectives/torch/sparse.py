"""Sums of sparse tensors (COO) over all ranks.

Invariant: every rank adds up the same entries in the same order, so that the results are bitwise equal on all ranks.
The tensors' shapes are compared before anything is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp

from collectives.native.errors import DesyncError
from collectives.torch.operations import Operation
from collectives.torch.tensors import assign, reading, tensor_of


def allreduce(tensor: Any, op: Any, size: int) -> tuple[list[Operation], Callable[[], None]]:
    """Prepares an allreduce of a sparse tensor: returns two operations to run, and a function to call after both.

    The function sets `tensor` to the sum or average, which is coalesced. Every rank receives the indices and values of
    all ranks: n*k entries, if n ranks have k entries each. `size`: the number of ranks. TypeError for layouts other
    than COO, ValueError for ops other than SUM and AVG.
    """
    if tensor.layout is not torch.sparse_coo:
        raise TypeError(f"the tensor is sparse ({tensor.layout}): give tensor.to_sparse(), or tensor.to_dense()")
    if op.op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ValueError("sparse tensors can be summed (SUM) and averaged (AVG); for other ops give tensor.to_dense()")
    mine = tensor.detach().coalesce()
    entries, values = mine.indices(), mine.values()
    form = [tensor.sparse_dim(), *tensor.shape]
    # First the tensor's form and number of entries, then the indices. The form has the same length on all ranks, or
    # they disagree.
    described = torch.cat([torch.tensor([len(form), *form, entries.shape[1]]), entries.reshape(-1)])
    found: dict[str, Any] = {}

    def add() -> None:
        where = _entries(tensor_of(found["entries"]), form, size)
        parts = tensor_of(found["values"]).view(values.dtype).view(-1, *values.shape[1:])
        total = torch.sparse_coo_tensor(torch.cat(where, 1), parts, tensor.shape, check_invariants=False).coalesce()
        if op.op == ReduceOp.AVG:
            floating = total.is_floating_point() or total.is_complex()
            total = torch.div(total, size, rounding_mode=None if floating else "trunc")
        assign(tensor, total)

    operations = [
        Operation("allgatherv", (reading(described),), (), lambda result: found.update(entries=result)),
        Operation(
            "allgatherv",
            (reading(values, moved=True).reshape(-1),),
            (tensor,),
            lambda result: found.update(values=result),
        ),
    ]
    return operations, add


def _entries(described: Any, form: list[int], size: int) -> list[Any]:
    """Return each rank's indices, as a tensor of shape (number of sparse dimensions, number of entries).

    `described`: every rank's form (sparse dimensions and shape), number of entries, and indices. DesyncError if a
    rank's form is not `form`.
    """
    found, start = [], 0
    for rank in range(size):
        length = int(described[start])
        theirs = described[start + 1 : start + 1 + length].tolist()
        if theirs != form:
            raise DesyncError(
                f"all_reduce: this rank's sparse tensor has {form[0]} sparse dimensions and shape {tuple(form[1:])}, "
                f"but that of rank {rank} has {theirs[0]} and {tuple(theirs[1:])}"
            )
        count = int(described[start + 1 + length])
        start += 2 + length
        found.append(described[start : start + form[0] * count].view(form[0], count))
        start += form[0] * count
    return found


def is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided
