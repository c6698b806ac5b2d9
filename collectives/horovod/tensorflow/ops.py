"""Horovod's collectives for TensorFlow's tensors, eager or in a tf.function, with the gradients that Horovod has.

Invariant: collectives.tensorflow computes the results; this module adds prescale and postscale factors, compression,
process sets, averages of integers, and Horovod's scaling of gradients. Every rank makes the same calls in the same
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import collectives.tensorflow as hooks
from collectives.horovod.compression import is_custom, wire
from collectives.horovod.options import check_devices
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.horovod.reductions import Average, op_name
from collectives.horovod.tensorflow.compression import Compression
from collectives.tensorflow.inputs import gradient_of, scaled, tensor_of

_plain = tf.autograph.experimental.do_not_convert


@_plain
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Returns the reduction of all ranks' tensors; the average if neither `op` nor `average` is given.

    Tensors must have the same shape and dtype on all ranks. The average of integers is rounded towards 0. `name`
    appears in errors. `prescale_factor` and `postscale_factor` multiply tensors before and after the reduction.
    `process_set`: the ranks that take part. docs/horovod.md lists arguments without effect.
    """
    check_devices(device_dense, device_sparse)
    chosen = op_name(op, average)
    return _reduced([tensor], chosen, compression, prescale_factor, postscale_factor, name, process_set)[0]


@_plain
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """`allreduce` of each tensor; all are sent together."""
    check_devices(device_dense, device_sparse)
    chosen = op_name(op, average)
    return _reduced(tensors, chosen, compression, prescale_factor, postscale_factor, name, process_set)


def _reduced(
    tensors: Sequence[Any],
    op: str,
    compression: Any,
    before: float,
    after: float,
    name: str | None,
    process_set: ProcessSet,
) -> list[Any]:
    comm = process_set.group()
    given = [x if isinstance(x, tf.IndexedSlices) else tensor_of(x, "allreduce") for x in tensors]
    results: list[Any] = [None] * len(given)
    whole = [i for i, x in enumerate(given) if op == "average" and x.dtype.is_integer]
    others = [i for i in range(len(given)) if i not in whole]
    contexts: dict[int, Any] = {}
    if is_custom(compression):
        for i in others:
            if not isinstance(given[i], tf.IndexedSlices):
                given[i], contexts[i] = compression.compress(given[i])
    for places, how, factor in ((others, op, after), (whole, "sum", 1.0)):
        if not places:
            continue
        found = hooks.grouped_allreduce(
            [given[i] for i in places],
            how,
            comm=comm,
            compression=wire(compression),
            prescale=before,
            postscale=factor,
            name=name or "",
        )
        for i, x in zip(places, found, strict=True):
            results[i] = x
    for i in whole:
        results[i] = _quotient(results[i], comm.size, after)
    for i, context in contexts.items():
        results[i] = compression.decompress(results[i], context)
    return results


@_plain
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces all ranks' tensors by `op`, and returns this rank's rows of the result.

    If the number of ranks does not divide the number of rows, the first ranks get one row more. `prescale_factor` and
    `postscale_factor` multiply tensors before and after the reduction. `process_set`: the ranks that take part.
    """
    check_devices(device_dense)
    comm, chosen = process_set.group(), op_name(op)
    x = tensor_of(tensor, "reducescatter")
    is_custom(compression)  # raises if it is no compressor
    whole = chosen == "average" and x.dtype.is_integer
    sent, context = compression.compress(_times(_gradient_times(x, comm.size), prescale_factor))
    part = hooks.reducescatter(sent, "sum" if whole else chosen, comm=comm, name=name or "")
    if whole:
        return _quotient(part, comm.size, postscale_factor)
    return _times(compression.decompress(part, context), postscale_factor)


@_plain
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`reducescatter` of each tensor, one after the other."""
    return [
        reducescatter(
            tensor,
            device_dense,
            compression,
            op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        for tensor in tensors
    ]


@_plain
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensors of all ranks, joined along the first axis in rank order. Only this axis may differ in length.

    `process_set`: the ranks that take part.
    """
    comm = process_set.group()
    x = _gradient_times(tensor_of(tensor, "allgather"), 1.0 / comm.size)
    return hooks.allgather(x, comm=comm, name=name or "")


@_plain
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`allgather` of each tensor, one after the other."""
    return [allgather(tensor, name, process_set=process_set) for tensor in tensors]


@_plain
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensor of rank `root_rank` on every rank. Tensors must have the same shape and dtype on all ranks.

    `process_set`: the ranks that take part.
    """
    comm = process_set.group()
    x = _gradient_times(tensor_of(tensor, "broadcast"), 1.0 / comm.size)
    return hooks.broadcast(x, process_set.root(root_rank), comm=comm, name=name or "")


@_plain
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of the tensor to each rank, and returns the rows received from all ranks, in rank order.

    `splits[i]` is the number of rows sent to rank i; without `splits` every rank gets the same number of rows. With
    `splits`, a pair is returned: the rows received, and the number of rows from each rank (int32).
    """
    comm = process_set.group()
    if splits is None:
        return hooks.alltoall(tensor, comm=comm, name=name or "")
    received, coming = hooks.alltoall(tensor, splits, comm=comm, name=name or "")
    return received, tf.cast(coming, tf.int32)


@_plain
def join() -> Any:
    """For a rank without data left: takes part in other ranks' allreduces with zeros until all ranks call `join`.

    Returns the number of the rank that called `join` last, as an int32 scalar.
    """
    return tf.cast(hooks.join(comm=global_process_set.group()), tf.int32)


@_plain
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank has called it."""
    hooks.barrier(comm=process_set.group())


def _times(x: Any, factor: float) -> Any:
    if factor != 1.0 and x.dtype.is_bool:
        raise TypeError("prescale_factor and postscale_factor are for numbers, not for bool")
    return scaled(x, factor)


def _quotient(total: Any, size: int, factor: float) -> Any:
    """`total / size * factor` for integers, rounded towards 0. Slices with the same index are added up first."""
    if isinstance(total, tf.IndexedSlices):
        # Values of the same row are added up first: rounding each quotient would lose more than rounding the sum's.
        rows, places = tf.unique(total.indices)
        values = tf.math.unsorted_segment_sum(total.values, places, tf.size(rows))
        return tf.IndexedSlices(_quotient(values, size, factor), rows, total.dense_shape)
    if factor == 1.0:
        return tf.truncatediv(total, tf.cast(size, total.dtype))
    return tf.cast(tf.cast(total, tf.float64) * factor / size, total.dtype)


def _gradient_times(x: Any, factor: float) -> Any:
    """`x`, with its gradient multiplied by `factor`, so that the gradient has the scale that it has in Horovod."""

    @tf.custom_gradient
    def flowing(x: Any) -> Any:
        return tf.identity(x), lambda above: gradient_of(above) * tf.cast(factor, above.dtype)

    return flowing(x) if factor != 1 and (x.dtype.is_floating or x.dtype.is_complex) else x
