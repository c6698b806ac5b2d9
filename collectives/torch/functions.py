"""Collectives on PyTorch tensors over a communicator: blocking or in the background, with gradients for autograd.

    y = collectives.torch.allreduce(x)                  # the average of every rank's x
    handle = collectives.torch.allreduce_async_(x)      # in place, in the background
    handle.wait()

Invariant: every rank makes the same calls in the same order. Blocking functions that return one new tensor can
be differentiated; their gradients are those of the sum of all ranks' losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.torch.inplace import Gradient, check, overwriting, overwritten
from collectives.torch.tensors import reading, tensor_of, writing

Seconds: TypeAlias = "float | None"


class Handle:
    """A handle of a collective that runs in the background. Do not use the collective's tensors until it is done."""

    def __init__(self, work: Any, deliver: Callable[[Any], Any]) -> None:
        self._work: Final = work
        self._deliver: Callable[[Any], Any] | None = deliver
        self._result: Any = None

    def done(self) -> bool:
        """Whether it has completed or failed. Does not block."""
        return bool(self._work.done())

    def wait(self, timeout: Seconds = None) -> Any:
        """Waits for the operation, and returns its result: a tensor, or a list of tensors.

        Raises the operation's error. `timeout`: in seconds; None for the operation's own timeout. If `timeout` passes
        first, raises OpTimeout, and the operation continues.
        """
        self._work.wait(timeout)
        if self._deliver is not None:
            with torch.no_grad():
                self._result, self._deliver = self._deliver(self._work.result()), None
        return self._result


def poll(handle: Handle) -> bool:
    """Returns whether the operation of this handle is done. Does not block. The same as `handle.done()`."""
    return handle.done()


def synchronize(handle: Handle) -> Any:
    """Waits for the operation of this handle, and returns its result. The same as `handle.wait()`."""
    return handle.wait()


# --- allreduce


def allreduce(tensor: Any, op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None) -> Any:
    """Returns the reduction by `op` of all ranks' tensors, as a new tensor.

    Tensors have to have the same shape and dtype on all ranks. `op`: "average", or an op of `Communicator.allreduce`.
    `comm`: None for the communicator that `collectives.init` made. `timeout`: in seconds; None for the communicator's
    timeout. Differentiable if `op` is "average" or "sum".
    """
    return _Allreduce.apply(tensor, op_name(op), default(comm), timeout)


def allreduce_(tensor: Any, op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None) -> Any:
    """Overwrites `tensor` with the reduction by `op` of all ranks' tensors, and returns `tensor`.

    The arguments are those of `allreduce`. For autograd this is an in-place operation: RuntimeError for a leaf that
    requires a gradient, as with `tensor.mul_(2)`.
    """
    comm = default(comm)
    array, finish = writing(tensor)
    with overwriting((tensor,), _reduced(op, comm, timeout)):
        comm.allreduce(array, op_name(op), out=array, timeout=timeout)
    with torch.no_grad():
        return _after((finish,), tensor)


def allreduce_async(
    tensor: Any, op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None
) -> Handle:
    """`allreduce` in the background, without a gradient."""
    work = default(comm).allreduce_async(reading(tensor), op_name(op), timeout=timeout)
    return Handle(work, lambda result: tensor_of(result).view(tensor.shape))


def allreduce_async_(
    tensor: Any, op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None
) -> Handle:
    """`allreduce_` in the background."""
    comm = default(comm)
    array, finish = writing(tensor)
    check((tensor,))
    work = comm.allreduce_async(array, op_name(op), out=array, timeout=timeout)
    overwritten((tensor,), _reduced(op, comm, timeout))
    return Handle(work, lambda _: _after((finish,), tensor))


def grouped_allreduce(
    tensors: Sequence[Any], op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None
) -> list[Any]:
    """`allreduce` of each tensor, in one call; without a gradient."""
    return grouped_allreduce_async(tensors, op, comm=comm, timeout=timeout).wait()


def grouped_allreduce_(
    tensors: Sequence[Any], op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None
) -> list[Any]:
    """`allreduce_` of each tensor, in one call."""
    written = [writing(tensor) for tensor in tensors]
    arrays = [array for array, _ in written]
    comm = default(comm)
    with overwriting(tensors, _reduced(op, comm, timeout)):
        comm.allreduce_many(arrays, op_name(op), out=arrays, timeout=timeout)
    with torch.no_grad():
        return _after([finish for _, finish in written], list(tensors))


def grouped_allreduce_async(
    tensors: Sequence[Any], op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None
) -> Handle:
    """`grouped_allreduce` in the background."""
    arrays = [reading(tensor) for tensor in tensors]
    work = default(comm).allreduce_many_async(arrays, op_name(op), timeout=timeout)
    shapes = [tensor.shape for tensor in tensors]
    return Handle(work, lambda found: [tensor_of(a).view(s) for a, s in zip(found, shapes, strict=True)])


def grouped_allreduce_async_(
    tensors: Sequence[Any], op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None
) -> Handle:
    """`grouped_allreduce_` in the background."""
    written = [writing(tensor) for tensor in tensors]
    arrays, given = [array for array, _ in written], list(tensors)
    comm = default(comm)
    check(given)
    work = comm.allreduce_many_async(arrays, op_name(op), out=arrays, timeout=timeout)
    overwritten(given, _reduced(op, comm, timeout))
    return Handle(work, lambda _: _after([finish for _, finish in written], given))


# --- other collectives


def allgather(tensor: Any, *, comm: Communicator | None = None, timeout: Seconds = None) -> Any:
    """Returns all ranks' tensors, joined along the first axis in rank order; only this axis may differ in length.

    Differentiable. `comm`: None for the communicator that `collectives.init` made. `timeout`: in seconds.
    """
    return _Allgather.apply(tensor, default(comm), timeout)


def allgather_async(tensor: Any, *, comm: Communicator | None = None, timeout: Seconds = None) -> Handle:
    """`allgather` in the background, without a gradient; returns a handle to wait for.

    Ranks exchange their numbers of rows first, so the call returns only when every rank has made it.
    """
    return Handle(default(comm).allgatherv_async(reading(tensor, moved=True), timeout=timeout), _like(tensor))


def broadcast(tensor: Any, root_rank: int = 0, *, comm: Communicator | None = None, timeout: Seconds = None) -> Any:
    """Returns a copy of the `tensor` of rank `root_rank`.

    Tensors have to have the same shape and dtype on all ranks. Differentiable.
    """
    return _Broadcast.apply(tensor, root_rank, default(comm), timeout)


def broadcast_(tensor: Any, root_rank: int = 0, *, comm: Communicator | None = None, timeout: Seconds = None) -> Any:
    """Overwrites `tensor` with that of rank `root_rank`, and returns `tensor`.

    For autograd this is an in-place operation: RuntimeError for a leaf that requires a gradient, as with
    `tensor.mul_(2)`.
    """
    comm = default(comm)
    array, finish = writing(tensor, moved=True)
    with overwriting((tensor,), _to_root(root_rank, comm, timeout)):
        comm.broadcast(array, root_rank, timeout=timeout)
    with torch.no_grad():
        return _after((finish,), tensor)


def broadcast_async(
    tensor: Any, root_rank: int = 0, *, comm: Communicator | None = None, timeout: Seconds = None
) -> Handle:
    """`broadcast` in the background, without a gradient."""
    return broadcast_async_(tensor.detach().clone(), root_rank, comm=comm, timeout=timeout)


def broadcast_async_(
    tensor: Any, root_rank: int = 0, *, comm: Communicator | None = None, timeout: Seconds = None
) -> Handle:
    """`broadcast_` in the background."""
    comm = default(comm)
    array, finish = writing(tensor, moved=True)
    check((tensor,))
    work = comm.broadcast_async(array, root_rank, timeout=timeout)
    overwritten((tensor,), _to_root(root_rank, comm, timeout))
    return Handle(work, lambda _: _after((finish,), tensor))


def reducescatter(
    tensor: Any, op: str = "average", *, comm: Communicator | None = None, timeout: Seconds = None
) -> Any:
    """Reduces all ranks' tensors by `op`, and returns this rank's rows of the result.

    If the number of ranks does not divide the number of rows, the first ranks get one row more. Differentiable if `op`
    is "average" or "sum".
    """
    return _Reducescatter.apply(tensor, op_name(op), default(comm), timeout)


def alltoall(
    tensor: Any, splits: Any = None, *, comm: Communicator | None = None, timeout: Seconds = None
) -> tuple[Any, Any]:
    """Sends the next splits[i] rows of `tensor` to each rank i; returns the received rows, in rank order.

    Also returns the number of rows from each rank. `splits`: a sequence or tensor of ints; None divides the rows
    equally. Differentiable.
    """
    comm = default(comm)
    if splits is None:
        if not tensor.dim() or tensor.shape[0] % comm.size:
            raise ValueError(f"alltoall: {tuple(tensor.shape)} cannot be divided evenly among {comm.size} ranks")
        leaving = np.full(comm.size, tensor.shape[0] // comm.size, np.int64)
    else:
        leaving = np.asarray(splits, np.int64)
    if leaving.shape != (comm.size,) or leaving.min() < 0 or not tensor.dim() or leaving.sum() != tensor.shape[0]:
        raise ValueError(
            f"alltoall: splits {leaving.tolist()} do not divide {tuple(tensor.shape)} among {comm.size} ranks"
        )
    coming = comm.alltoall(leaving, timeout=timeout)
    return _Alltoall.apply(tensor, leaving, coming, comm, timeout), torch.from_numpy(coming)


def barrier(*, comm: Communicator | None = None, timeout: Seconds = None) -> None:
    """Return when every rank has called it."""
    default(comm).barrier(timeout=timeout)


# --- gradients of the collectives


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, op: str, comm: Communicator, timeout: Seconds) -> Any:
        context.given = op, comm, timeout
        return tensor_of(comm.allreduce(reading(tensor), op, timeout=timeout)).view(tensor.shape)

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        return _reduced(*context.given)(grads[0]), None, None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, comm: Communicator, timeout: Seconds) -> Any:
        context.given = tensor.shape[0] if tensor.dim() else 0, comm, timeout
        return _like(tensor)(comm.allgatherv(reading(tensor, moved=True), timeout=timeout))

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        rows, comm, timeout = context.given
        whole = comm.allreduce(reading(grads[0]), timeout=timeout)
        start = int(comm.allgather(np.array(rows), timeout=timeout)[: comm.rank].sum())
        return tensor_of(whole[start : start + rows]), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, root: int, comm: Communicator, timeout: Seconds) -> Any:
        context.given = root, comm, timeout
        return broadcast_(tensor.detach().clone(), root, comm=comm, timeout=timeout)

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        return _to_root(*context.given)(grads[0]), None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, op: str, comm: Communicator, timeout: Seconds) -> Any:
        if not tensor.dim():
            raise ValueError("reducescatter divides the first axis among ranks, but the tensor is 0-d")
        context.given = op, comm, timeout
        x = reading(tensor)
        counts = _shares(x.shape[0], comm.size)
        most = counts[0]
        if most * comm.size != x.shape[0]:  # make every block as long as the longest
            padded = np.zeros((comm.size, most, *x.shape[1:]), x.dtype)
            start = 0
            for block, rows in zip(padded, counts, strict=True):
                block[:rows] = x[start : start + rows]
                start += rows
            x = padded.reshape(-1, *x.shape[1:])
        return tensor_of(comm.reduce_scatter(x, op, timeout=timeout)[: counts[comm.rank]])

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        op, comm, timeout = context.given
        _has_gradient(op)
        whole = tensor_of(comm.allgatherv(reading(grads[0]), timeout=timeout))
        return whole.div_(comm.size) if op == "avg" else whole, None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, leaving: Any, coming: Any, comm: Communicator, timeout: Seconds) -> Any:
        context.given = leaving, coming, comm, timeout
        return _like(tensor)(comm.alltoallv(reading(tensor, moved=True), leaving, timeout=timeout))

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        leaving, coming, comm, timeout = context.given
        return _Alltoall.apply(grads[0], coming, leaving, comm, timeout), None, None, None, None


def _reduced(op: str, comm: Communicator, timeout: Seconds) -> Gradient:
    """The gradient of an allreduce."""

    def gradient(above: Any) -> Any:
        _has_gradient(op_name(op))
        return _Allreduce.apply(above, op_name(op), comm, timeout)

    return gradient


def broadcast_gradient(above: Any, root: int, comm: Communicator, timeout: Seconds = None) -> Any:
    """Returns the gradient of a broadcast's input: on rank `root` the sum of all ranks' `above`, on other ranks zeros.

    `above`: the gradient of the broadcast's result.
    """
    total = comm.reduce(reading(above), root=root, timeout=timeout)
    return torch.zeros_like(above) if total is None else tensor_of(total).view(above.shape)


def _to_root(root: int, comm: Communicator, timeout: Seconds) -> Gradient:
    return lambda above: broadcast_gradient(above, root, comm, timeout)


def op_name(op: str) -> str:
    """The communicator's name of `op`."""
    return "avg" if op == "average" else op


def _has_gradient(op: str) -> None:
    if op not in ("avg", "sum"):
        raise NotImplementedError(f"op {op!r} has no gradient: use 'average' or 'sum', or detach the tensor")


def _shares(rows: int, size: int) -> list[int]:
    return [rows // size + (rank < rows % size) for rank in range(size)]


def _like(tensor: Any) -> Callable[[Any], Any]:
    """A function that converts a received array to a tensor with the dtype of `tensor`.

    Elements of dtypes that NumPy lacks are sent as integers of the same size.
    """

    def made(array: Any) -> Any:
        found = tensor_of(array)
        return found if found.dtype == tensor.dtype else found.view(tensor.dtype)

    return made


def _after(finishes: Sequence[Any], result: Any) -> Any:
    for finish in finishes:
        if finish is not None:
            finish()
    return result
