"""Horovod's collectives for Keras, outside of compiled steps. They take numbers, arrays or tensors, and return tensors.

Invariant: no code here is traced. Gradients of training steps are exchanged by the optimizer, not here.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from collectives.arrays.array import Array
from collectives.horovod.compression import is_custom
from collectives.horovod.keras.compression import Compression
from collectives.horovod.process_sets import global_process_set
from collectives.horovod.reductions import Average, op_name
from collectives.keras.framework import keras


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """Returns the reduction of all ranks' values; the average if neither `op` nor `average` is given.

    Values must have the same shape and dtype on all ranks. The average of integers is rounded towards 0.
    `prescale_factor` and `postscale_factor` multiply values before and after the reduction. `name` appears in errors.
    """
    return _reduced("allreduce", value, op_name(op, average), prescale_factor, postscale_factor, compression)


def reducescatter(value: Any, name: str | None = None, op: Any = Average) -> Any:
    """Reduces all ranks' values by `op`, and returns this rank's rows of the result.

    ValueError if the number of ranks does not divide the number of rows.
    """
    return _reduced("reduce_scatter", value, op_name(op), 1.0, 1.0, Compression.none)


def allgather(value: Any, name: str | None = None) -> Any:
    """Returns all ranks' values, joined along the first axis in rank order. Only this axis may differ in length."""
    comm = global_process_set.group()
    return keras.ops.convert_to_tensor(comm.allgatherv(_array(_tensor(value, "allgather"))))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the value of rank `root_rank` on every rank. Values must have the same shape and dtype on all ranks."""
    comm = global_process_set.group()
    array = np.array(_array(_tensor(value, "broadcast")))
    return keras.ops.convert_to_tensor(comm.broadcast(array, global_process_set.root(root_rank)))


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Raises RuntimeError, as in Horovod's eager execution: only TensorFlow 1 sessions have global variables."""
    raise RuntimeError(
        "hvd.broadcast_global_variables() does not support eager execution. Please use "
        "hvd.callbacks.BroadcastGlobalVariablesCallback, or collectives.keras.broadcast_global_variables(model)"
    )


def _reduced(collective: str, value: Any, op: str, before: float, after: float, compression: Any) -> Any:
    comm = global_process_set.group()
    is_custom(compression)  # raises if it is no compressor
    tensor, context = compression.compress(_tensor(value, collective))
    array = _array(tensor)
    whole = array.dtype.kind in "iu"
    if array.dtype.kind == "b" and (before, after) != (1.0, 1.0):
        raise TypeError("prescale_factor and postscale_factor are for numbers, not for bool")
    reduce = comm.allreduce if collective == "allreduce" else comm.reduce_scatter
    divides = whole and op == "average" and after != 1.0  # together with the factor, so that it is rounded once
    found = reduce(_scaled(array, before), {"average": "sum" if divides else "avg"}.get(op, op))
    if whole:
        found = _scaled(found, after, comm.size if divides else 1)
    result = compression.decompress(keras.ops.convert_to_tensor(found), context)
    return result if whole or after == 1.0 else result * after


def _scaled(array: Array, factor: float, divisor: int = 1) -> Array:
    """`array * factor`; for integers `array * factor / divisor`, in float64 and rounded towards 0, as in Horovod."""
    if factor == 1.0 and divisor == 1:
        return array
    if array.dtype.kind in "iu":
        return (array.astype(np.float64) * factor / divisor).astype(array.dtype)
    return array * array.dtype.type(factor)


def _tensor(value: Any, what: str) -> Any:
    if value is None:
        raise TypeError(f"{what}: None is not a value")
    return keras.ops.convert_to_tensor(value)


def _array(tensor: Any) -> Array:
    return np.asarray(keras.ops.convert_to_numpy(tensor))
