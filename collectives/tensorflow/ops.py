"""Collectives on tensors: eager, in a tf.function, and with gradients.

Invariant: the gradient of an operation is the gradient of the sum of all ranks' losses. Another collective computes
this gradient. Every rank's tape runs these collectives in the reverse order of the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from collectives.arrays.array import Array, check_rank
from collectives.arrays.recycle import aligned
from collectives.core import default
from collectives.core.communicator import Communicator
from collectives.gradients.channel import channel
from collectives.gradients.wire import OPS, Compression
from collectives.tensorflow.bridge import Spec, call, for_sessions
from collectives.tensorflow.exchange import GradientExchange
from collectives.tensorflow.inputs import gradient_of, tensor_of

_plain = tf.autograph.experimental.do_not_convert


@_plain
def allreduce(
    tensor: Any,
    op: str = "average",
    *,
    comm: Communicator | None = None,
    compression: Compression | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    name: str = "",
) -> Any:
    """Returns the reduction by `op` of all ranks' tensors, which have to have the same shape and dtype.

    `op`: "average", "sum", "min", "max" or "prod"; TensorFlow can differentiate only "average" and "sum".
    tf.IndexedSlices stay sparse: all ranks' rows are concatenated. The other arguments and the errors are those of
    `GradientExchange`.
    """
    return grouped_allreduce(
        [tensor],
        op,
        comm=comm,
        compression=compression,
        prescale=prescale,
        postscale=postscale,
        timeout=timeout,
        name=name,
    )[0]


@_plain
def grouped_allreduce(
    tensors: Sequence[Any],
    op: str = "average",
    *,
    comm: Communicator | None = None,
    compression: Compression | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    name: str = "",
) -> list[Any]:
    """Runs an `allreduce` of each of several tensors, of any shapes and dtypes; returns the results as a list.

    Small tensors are joined into buckets, which are reduced together.
    """

    def exchanged(*given: Any) -> list[Any]:
        exchange = GradientExchange(
            comm,
            op=op,
            compression=compression,
            prescale=prescale,
            postscale=postscale,
            timeout=timeout,
            name=name,
        )
        return exchange(given)

    @tf.custom_gradient
    def reduced(*given: Any) -> Any:
        def gradient(*above: Any) -> list[Any]:
            if op not in ("average", "avg", "sum"):
                raise LookupError(f"allreduce with op={op!r} has no gradient")
            return exchanged(*above)

        return exchanged(*given), gradient

    given = [x if isinstance(x, tf.IndexedSlices) else tensor_of(x, "allreduce") for x in tensors]
    if any(isinstance(x, tf.IndexedSlices) for x in given):
        return exchanged(*given)
    return list(reduced(*given))


@_plain
def allgather(tensor: Any, *, comm: Communicator | None = None, timeout: float | None = None, name: str = "") -> Any:
    """Returns all ranks' tensors, joined along the first axis in rank order; only this axis may differ in length.

    ValueError for a 0-d tensor. DesyncError on every rank if dtypes or the lengths of other axes differ.
    """
    way = channel(default.default(comm))

    @tf.custom_gradient
    def joined(x: Any) -> Any:
        def body(array: Array) -> list[Array]:
            return [way.comm.allgatherv(_moved(array), timeout=timeout).view(array.dtype)]

        def gradient(above: Any) -> Any:
            def back(array: Array, rows: Array) -> list[Array]:
                counts = way.comm.allgather(rows.reshape(1), timeout=timeout)[:, 0]
                start = int(counts[: way.rank].sum())
                total = way.comm.allreduce(array, timeout=timeout)
                return [_kept(total[start : start + int(rows)])]

            above = gradient_of(above)
            return call(back, [above, _rows(x)], [Spec(above.dtype, x.shape)], name or "allgather_gradient")[0]

        return call(body, [x], [Spec(x.dtype, _resized(x))], name or "allgather")[0], gradient

    return joined(_with_rows(tensor, "allgather", "joins along"))


@_plain
def broadcast(
    tensor: Any, root_rank: int = 0, *, comm: Communicator | None = None, timeout: float | None = None, name: str = ""
) -> Any:
    """Returns the `tensor` of rank `root_rank`, on every rank.

    Tensors have to have the same shape and dtype on all ranks.
    """
    found = default.default(comm)
    root = check_rank(root_rank, found.size, "root_rank")
    way = channel(found)

    @tf.custom_gradient
    def sent(x: Any) -> Any:
        def body(array: Array) -> list[Array]:
            return [way.comm.broadcast(_moved(_kept(array)), root, timeout=timeout).view(array.dtype)]

        def gradient(above: Any) -> Any:
            def back(array: Array) -> list[Array]:
                total = way.comm.reduce(array, root=root, timeout=timeout)
                return [np.zeros_like(array) if total is None else total]

            above = gradient_of(above)
            return call(back, [above], [Spec(above.dtype, x.shape)], name or "broadcast_gradient")[0]

        return call(body, [x], [Spec(x.dtype, x.shape)], name or "broadcast")[0], gradient

    return sent(tensor_of(tensor, "broadcast"))


@_plain
def reducescatter(
    tensor: Any, op: str = "average", *, comm: Communicator | None = None, timeout: float | None = None, name: str = ""
) -> Any:
    """Reduces all ranks' tensors by `op`, and returns this rank's rows of the result.

    If the number of ranks does not divide the number of rows, the first ranks get one row more. `op`: "average", "sum",
    "min", "max" or "prod". ValueError for any other op, and for a 0-d tensor.
    """
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(map(repr, OPS))}, not {op!r}")
    way = channel(default.default(comm))

    @tf.custom_gradient
    def reduced(x: Any) -> Any:
        def body(array: Array) -> list[Array]:
            rows, rest = divmod(array.shape[0], way.size)
            if not rest:
                result = aligned((rows, *array.shape[1:]), array.dtype)
                return [way.comm.reduce_scatter(array, OPS[op], out=result, timeout=timeout)]
            start = way.rank * rows + min(way.rank, rest)
            total = way.comm.allreduce(array, OPS[op], timeout=timeout)
            return [_kept(total[start : start + rows + (way.rank < rest)])]

        def gradient(above: Any) -> Any:
            if OPS[op] not in ("avg", "sum"):
                raise LookupError(f"reducescatter with op={op!r} has no gradient")
            everyones = allgather(gradient_of(above), comm=comm, timeout=timeout, name=name)
            return everyones / way.size if OPS[op] == "avg" else everyones

        spec = Spec(x.dtype, _resized(x, _share(x, way.rank, way.size)))
        return call(body, [x], [spec], name or "reducescatter")[0], gradient

    return reduced(_with_rows(tensor, "reducescatter", "divides"))


@_plain
def alltoall(
    tensor: Any,
    splits: Any = None,
    *,
    comm: Communicator | None = None,
    timeout: float | None = None,
    name: str = "",
) -> Any:
    """Sends rows of `tensor` to each rank; returns the received rows, in rank order.

    With `splits`, splits[i] rows are sent to rank i, and a pair is returned: the rows, and the number of rows from each
    rank. Without `splits` every rank gets the same number of rows, and only the rows are returned. ValueError if
    `splits` does not match the number of rows.
    """
    way = channel(default.default(comm))

    @tf.custom_gradient
    def exchanged(x: Any, counts: Any) -> Any:
        def body(array: Array, leaving: Array) -> list[Array]:
            coming = way.comm.alltoall(leaving.astype(np.int64), timeout=timeout)
            return [way.comm.alltoallv(_moved(array), leaving, timeout=timeout).view(array.dtype), coming]

        specs = [Spec(x.dtype, _resized(x)), Spec(tf.int64, [way.size])]
        received, coming = call(body, [x, counts], specs, name or "alltoall")

        def gradient(above: Any, _: Any) -> Any:
            def back(array: Array, leaving: Array) -> list[Array]:
                return [way.comm.alltoallv(array, leaving, timeout=timeout)]

            above = gradient_of(above)
            return call(back, [above, coming], [Spec(above.dtype, x.shape)], name or "alltoall_gradient")[0], None

        return (received, coming), gradient

    x = _with_rows(tensor, "alltoall", "divides")
    if splits is not None:
        counts = tensor_of(splits, "alltoall's splits")
        received, coming = exchanged(x, counts)
        return received, coming
    rows = x.shape[0] if x.shape.rank else None
    if rows is not None and rows % way.size:
        raise ValueError(
            f"alltoall divides {rows} rows among {way.size} ranks, which does not divide evenly: pass splits"
        )
    # If the number of rows is known only while the step runs, a remainder is refused there: the counts don't add up.
    evenly = tf.fill([way.size], tf.cast(_rows(x), tf.int64) // way.size)
    return exchanged(x, evenly)[0]


@_plain
def barrier(*, comm: Communicator | None = None, timeout: float | None = None, name: str = "") -> Any:
    """Waits until every rank has called `barrier`; in a tf.function, adds an operation that waits.

    In a TensorFlow 1 graph, returns this operation, which a session has to run; otherwise returns None.
    """
    way = channel(default.default(comm))

    def body() -> list[Array]:
        way.comm.barrier(timeout=timeout)
        return []

    made = call(body, [], [], name or "barrier")
    return made[0] if for_sessions() else None


@_plain
def join(*, comm: Communicator | None = None, timeout: float | None = None, name: str = "") -> Any:
    """For a rank without data left: takes part in other ranks' allreduces with zeros until all ranks call `join`.

    This includes the allreduces of gradients. Returns the rank that called `join` last, as an int64 tensor. Averages
    still divide by the number of all ranks. `timeout`: seconds for each training step of the other ranks. DesyncError
    on every rank if another rank calls any other collective.
    """
    way = channel(default.default(comm))

    def body() -> list[Array]:
        return [np.array(way.join(timeout), np.int64)]

    return call(body, [], [Spec(tf.int64, [])], name or "join")[0]


def _rows(x: Any) -> Any:
    return tf.shape(x, tf.int64)[0]


def _with_rows(tensor: Any, what: str, does: str) -> Any:
    x = tensor_of(tensor, what)
    if x.shape.rank == 0:
        raise ValueError(f"{what} {does} the first axis, but the tensor is 0-d: give tf.reshape(x, [1])")
    return x


def _resized(x: Any, rows: int | None = None) -> Any:
    """The shape of x with `rows` as first extent."""
    return x.shape if x.shape.rank is None else [rows, *x.shape[1:]]


def _share(x: Any, rank: int, size: int) -> int | None:
    rows = x.shape[0] if x.shape.rank else None
    return None if rows is None else rows // size + (rank < rows % size)


def _moved(array: Array) -> Array:
    """`array` for a collective that only moves data: 8-bit floats are viewed as bytes, others are unchanged."""
    return array.view(np.uint8) if array.dtype.name.startswith("float8") else array


def _kept(array: Array) -> Array:
    """A copy that may be written, or handed over to TensorFlow."""
    copy = aligned(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy
