"""Horovod's collectives in the background: each returns a handle for `poll` and `synchronize`.

Invariant: callers do not use a tensor until its operation is done; results in new tensors have no gradient. Every rank
starts the operations of one process set in the same order, and they complete in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import torch

import collectives.torch as hooks
from collectives.arrays.array import Array, check_counts
from collectives.core.communicator import Communicator
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.horovod.reductions import Average, op_name, training_op
from collectives.horovod.torch.joining import announce_allreduce
from collectives.horovod.torch.scaling import Reduction, check_tensor, reduction
from collectives.torch.functions import broadcast_gradient
from collectives.torch.inplace import differentiable
from collectives.torch.tensors import reading, tensor_of


class Waitable(Protocol):
    def done(self) -> bool: ...
    def wait(self) -> Any: ...


class Handle:
    """A handle of several operations in the background, to wait for all of them.

    `parts`: the operations. `deliver(results)` makes the handle's result from the list of the operations' results.
    """

    def __init__(self, parts: Sequence[Waitable], deliver: Callable[[list[Any]], Any]) -> None:
        self._parts: Final = parts
        self._deliver: Callable[[list[Any]], Any] | None = deliver
        self._result: Any = None

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def wait(self) -> Any:
        if self._deliver is not None:
            found = [part.wait() for part in self._parts]
            with torch.no_grad():
                self._result, self._deliver = self._deliver(found), None
        return self._result


def poll(handle: Any) -> bool:
    """Whether the operation of this handle is done, or has failed. If True, `synchronize` does not block."""
    return bool(handle.done())


def synchronize(handle: Any) -> Any:
    """Waits for the operation of this handle; returns its result or raises its error (PeerLost, OpTimeout, ...)."""
    return handle.wait()


# --- allreduce


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`allreduce` in the background."""
    chosen = op_name(op, average)
    return _one(_new([tensor], chosen, prescale_factor, postscale_factor, process_set))


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`allreduce_` in the background."""
    chosen = op_name(op, average)
    return _one(_in_place([tensor], chosen, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`grouped_allreduce` in the background."""
    return _new(tensors, op_name(op, average), prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`grouped_allreduce_` in the background."""
    return _in_place(tensors, op_name(op, average), prescale_factor, postscale_factor, process_set)


def _new(tensors: Sequence[Any], op: str, before: float, after: float, process_set: ProcessSet) -> Handle:
    comm = process_set.group()
    hows = [reduction(op, before, after, comm.size, tensor) for tensor in tensors]
    given = [how.prepared(tensor.detach()) for how, tensor in zip(hows, tensors, strict=True)]
    groups = by_op(hows)
    parts: list[Waitable] = []
    for name, group in groups:
        chosen = [given[i] for i in group]
        parts += [announce_allreduce(process_set, name, chosen), hooks.grouped_allreduce_async(chosen, name, comm=comm)]

    def deliver(found: list[Any]) -> list[Any]:
        results: list[Any] = [None] * len(hows)
        for (_, group), values in zip(groups, found[1::2], strict=True):
            for i, value in zip(group, values, strict=True):
                results[i] = hows[i].finished(value)
        return results

    return Handle(parts, deliver)


def _in_place(tensors: Sequence[Any], op: str, before: float, after: float, process_set: ProcessSet) -> Handle:
    comm, given = process_set.group(), list(tensors)
    hows = [reduction(op, before, after, comm.size, tensor) for tensor in given]
    with torch.no_grad():  # as in Horovod, leaves that require a gradient may be given
        for how, tensor in zip(hows, given, strict=True):
            how.prepare_(tensor)
        parts: list[Waitable] = []
        for name, group in by_op(hows):
            chosen = [given[i] for i in group]
            telling = announce_allreduce(process_set, name, chosen)
            parts += [telling, hooks.grouped_allreduce_async_(chosen, name, comm=comm)]
    for how, tensor in zip(hows, given, strict=True):
        differentiable(tensor, partial(_gradient, how, comm))

    def deliver(_: list[Any]) -> list[Any]:
        for how, tensor in zip(hows, given, strict=True):
            how.finish_(tensor)
        return given

    return Handle(parts, deliver)


def _gradient(how: Reduction, comm: Communicator, above: Any) -> Any:
    """The gradient of a tensor that was reduced in place."""
    return hooks.allreduce(above * (how.before * how.after), how.op, comm=comm)


def by_op(hows: Sequence[Reduction]) -> list[tuple[str, list[int]]]:
    """Groups the reductions in `hows` by op: returns a list of pairs (op, indices of the reductions with this op).

    The list is sorted by op. Averages of integers use the op "sum".
    """
    ops = sorted({how.op for how in hows})
    return [(op, [i for i, how in enumerate(hows) if how.op == op]) for op in ops]


def _one(handle: Handle) -> Handle:
    return Handle([handle], lambda found: found[0][0])


def sparse_allreduce_async(
    tensor: Any, name: str | None, op: Any, process_set: ProcessSet = global_process_set
) -> Callable[[], Any]:
    """Starts an allreduce of a sparse tensor, by gathering all ranks' rows, and returns a handle.

    As in Horovod, the handle is a function: calling it waits for the rows and returns the reduced tensor.
    """
    average = training_op(op) == "average"
    comm = process_set.group()
    if not check_tensor(tensor).is_sparse:
        raise TypeError(f"sparse_allreduce_async is for sparse tensors, not {tensor.layout}: use allreduce_async")
    indices = hooks.allgather_async(tensor._indices().t().contiguous(), comm=comm)
    values = hooks.allgather_async(tensor._values(), comm=comm)

    def result() -> Any:
        rows = values.wait()
        rows = rows / comm.size if average else rows
        # Indices are checked, since most of them come from other ranks.
        return torch.sparse_coo_tensor(indices.wait().t(), rows, tensor.size(), check_invariants=True)

    return result


# --- other collectives


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """`allgather` in the background; returns a handle. The call blocks until every rank has made it."""
    return hooks.allgather_async(check_tensor(tensor), comm=process_set.group())


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """`allgather_async` of each tensor, one after the other."""
    return Handle([allgather_async(tensor, name, process_set) for tensor in tensors], list)


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """`broadcast` in the background."""
    return hooks.broadcast_async(check_tensor(tensor), process_set.root(root_rank), comm=process_set.group())


def broadcast_async_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """`broadcast_` in the background."""
    comm, root = process_set.group(), process_set.root(root_rank)
    with torch.no_grad():
        handle = hooks.broadcast_async_(check_tensor(tensor), root, comm=comm)
    differentiable(tensor, lambda above: broadcast_gradient(above / comm.size, root, comm))
    return handle


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """`reducescatter` in the background."""
    comm = process_set.group()
    if not check_tensor(tensor).dim():
        raise ValueError("reducescatter divides the first axis among ranks, but the tensor is 0-d")
    how = reduction(op_name(op), prescale_factor, postscale_factor, comm.size, tensor)
    x = reading(how.prepared(tensor.detach()))
    named = "avg" if how.op == "average" else how.op
    rows, rest = divmod(len(x), comm.size)
    start = comm.rank * rows + min(comm.rank, rest)
    mine = slice(start, start + rows + (comm.rank < rest)) if rest else slice(None)
    # reduce_scatter needs blocks of one length: if rows do not divide evenly, every rank gets all rows instead.
    work = comm.allreduce_async(x, named) if rest else comm.reduce_scatter_async(x, named)
    return Handle([_Started(work)], lambda found: how.finished(tensor_of(found[0][mine])))


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """`reducescatter_async` of each tensor, one after the other."""
    started = [reducescatter_async(x, name, op, process_set, prescale_factor, postscale_factor) for x in tensors]
    return Handle(started, list)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """`alltoall` in the background; returns a handle. The call blocks until every rank has made it.

    The handle's result is always a pair, even without `splits`: the rows received, and the number of rows from each
    rank.
    """
    comm = process_set.group()
    rows = tensor.shape[0] if check_tensor(tensor).dim() else 0
    leaving = check_counts([rows // comm.size] * comm.size if splits is None else splits, comm.size, rows)
    coming = comm.alltoall(leaving)
    work = comm.alltoallv_async(reading(tensor, moved=True), leaving)
    return Handle([_Started(work)], lambda found: (_moved(found[0], tensor), received(coming, splits)))


def received(coming: Any, splits: Any) -> Any:
    """Converts `coming`, the number of rows from each rank, to a tensor with the dtype of `splits`.

    The dtype is int32 if `splits` is no tensor.
    """
    dtype = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32
    return torch.as_tensor(coming).to(dtype)


def _moved(array: Array, tensor: Any) -> Any:
    """`array` as a tensor of `tensor`'s dtype. Dtypes that NumPy lacks are sent as another dtype with as many bytes."""
    found = tensor_of(array)
    return found if found.dtype == tensor.dtype else found.view(tensor.dtype)


class _Started:
    """The handle of a communicator's operation, as a `Waitable`."""

    def __init__(self, work: Any) -> None:
        self._work: Final = work

    def done(self) -> bool:
        return bool(self._work.done())

    def wait(self) -> Any:
        return self._work.result()
