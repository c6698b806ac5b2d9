"""Converts what users pass into tensors that collectives support.

Invariant: unsupported objects are refused here, with TypeError, before anything is sent or traced.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_CURES = (
    (tf.RaggedTensor, "a ragged tensor", "its flat_values and row_lengths(), or tensor.to_tensor()"),
    (tf.SparseTensor, "a sparse tensor", "its indices and values, or tf.sparse.to_dense(tensor)"),
)


def tensor_of(x: Any, what: str) -> Any:
    """Returns `x` as a dense tensor of numbers or bools.

    Raises TypeError for any other object; the message begins with `what`.
    """
    for kind, name, cure in _CURES:
        if isinstance(x, kind):
            raise TypeError(f"{what}: {name} has no one block of memory that could travel: give {cure}")
    if x is None:
        raise TypeError(f"{what}: None is not a tensor")
    try:
        tensor = tf.convert_to_tensor(x)
    except (ValueError, TypeError) as error:
        raise TypeError(f"{what}: a {type(x).__name__} is not a tensor, nor made into one: {error}") from error
    dtype = tensor.dtype
    if dtype == tf.string:
        raise TypeError(
            f"{what}: texts cannot travel as tensors: give tf.io.decode_raw(x, tf.uint8), or use broadcast_object or "
            "allgather_object"
        )
    if not (dtype.is_bool or dtype.is_integer or dtype.is_floating or dtype.is_complex) or dtype.is_quantized:
        raise TypeError(f"{what}: a tensor of dtype {dtype.name} cannot travel: give tf.cast(x, another)")
    if dtype.name in ("int4", "uint4"):
        raise TypeError(f"{what}: {dtype.name} has no bytes of its own: give tf.cast(x, tf.{dtype.name[:-1]}8)")
    return tensor


def gradient_of(x: Any) -> Any:
    """Returns the gradient `x` as a dense tensor: if it is sparse, its rows are added to zeros."""
    return tf.convert_to_tensor(x)


def scaled(x: Any, factor: float) -> Any:
    """Returns `x * factor`. Integers are multiplied in float64 and rounded towards 0, as in Horovod."""
    if factor == 1:
        return x
    if x.dtype.is_integer:
        return tf.cast(tf.cast(x, tf.float64) * factor, x.dtype)
    return x * tf.cast(factor, x.dtype)
