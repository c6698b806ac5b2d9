"""Horovod's blocking collectives for PyTorch's tensors, with in-place forms, and with the gradients that Horovod has.

Invariant: collectives.torch computes the results; this module adds prescale and postscale factors, compressors, process
sets, averages of integers, and Horovod's scaling of gradients. Every rank makes the same calls in the same order; the
argument `name` has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import collectives.torch as hooks
from collectives.horovod.compression import is_custom
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.horovod.reductions import Average, op_name
from collectives.horovod.torch import background
from collectives.horovod.torch.compression import Compression
from collectives.horovod.torch.joining import announced
from collectives.horovod.torch.scaling import check_tensor, gradient_times, reduction


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the reduction of all ranks' tensors, as a new tensor; the average if neither `op` nor `average` is given.

    Tensors must have the same shape and dtype on all ranks. The average of integers is rounded towards 0. The result is
    differentiable for Average and Sum. `prescale_factor` and `postscale_factor` multiply tensors before and after the
    reduction. `process_set`: the ranks that take part.
    """
    chosen = op_name(op, average)
    return _reduced([tensor], chosen, compression, prescale_factor, postscale_factor, process_set)[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`allreduce` in place; returns the tensor."""
    return background.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allreduce` of each tensor; all are sent together."""
    chosen = op_name(op, average)
    return _reduced(tensors, chosen, compression, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrites each of `tensors` with its reduction over all ranks, and returns the tensors as a list.

    All tensors are sent together. The arguments are those of `allreduce_`.
    """
    handle = background.grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    found: list[Any] = handle.wait()
    return found


def _reduced(
    tensors: Sequence[Any], op: str, compression: Any, before: float, after: float, process_set: ProcessSet
) -> list[Any]:
    comm = process_set.group()
    is_custom(compression)  # raises if it is no compressor
    packed = [compression.compress(check_tensor(tensor)) for tensor in tensors]
    hows = [reduction(op, before, after, comm.size, sent) for sent, _ in packed]
    given = [how.prepared(sent) for how, (sent, _) in zip(hows, packed, strict=True)]
    results: list[Any] = [None] * len(given)
    for named, group in background.by_op(hows):
        found = _Allreduce.apply(named, process_set, *(given[i] for i in group))
        for i, x in zip(group, found, strict=True):
            results[i] = compression.decompress(hows[i].finished(x), packed[i][1])
    return results


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, op: str, process_set: ProcessSet, *tensors: Any) -> Any:
        context.given = op, process_set
        return tuple(announced(process_set, op, tensors))

    @staticmethod
    def backward(context: Any, *above: Any) -> Any:
        op, process_set = context.given
        if op not in ("average", "sum"):
            raise NotImplementedError(f"allreduce with op {op!r} has no gradient: use Average or Sum, or detach it")
        return None, None, *_Allreduce.apply(op, process_set, *above)


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the tensors of all ranks, joined along the first axis in rank order. Only this axis may differ in length.

    `process_set`: the ranks that take part.
    """
    comm = process_set.group()
    return hooks.allgather(gradient_times(tensor, 1.0 / comm.size), comm=comm)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`allgather` of each tensor, one after the other."""
    return [allgather(tensor, name, process_set) for tensor in tensors]


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the tensor of rank `root_rank`, as a new tensor. Tensors must have the same shape and dtype on all ranks.

    `process_set`: the ranks that take part.
    """
    comm = process_set.group()
    return hooks.broadcast(gradient_times(tensor, 1.0 / comm.size), process_set.root(root_rank), comm=comm)


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Overwrite the tensor with the root's, and return it."""
    return background.broadcast_async_(tensor, root_rank, name, process_set).wait()


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces all ranks' tensors by `op`, and returns this rank's rows of the result.

    If the number of ranks does not divide the number of rows, the first ranks get one row more. `prescale_factor` and
    `postscale_factor` multiply tensors before and after the reduction. `process_set`: the ranks that take part.
    """
    comm, chosen = process_set.group(), op_name(op)
    is_custom(compression)  # raises if it is no compressor
    sent, context = compression.compress(gradient_times(tensor, comm.size))
    how = reduction(chosen, prescale_factor, postscale_factor, comm.size, sent)
    found = how.finished(hooks.reducescatter(how.prepared(sent), how.op, comm=comm))
    return compression.decompress(found, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of each tensor, one after the other."""
    return [
        reducescatter(tensor, name, compression, op, process_set, prescale_factor, postscale_factor)
        for tensor in tensors
    ]


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends the next `splits[i]` rows of `tensor` to each rank i; returns the rows received, in rank order.

    Without `splits`, every rank is sent the same number of rows. With `splits`, a pair is returned: the rows received,
    and the number of rows from each rank.
    """
    rows, coming = hooks.alltoall(check_tensor(tensor), splits, comm=process_set.group())
    return rows if splits is None else (rows, background.received(coming, splits))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank has called it."""
    hooks.barrier(comm=process_set.group())
