"""Access to the memory of TensorFlow's tensors; errors with advice for variables of TensorFlow and Keras.

Invariant: TensorFlow is never asked for an export that would abort the process, such as DLPack of a string tensor.
Tensors never change, so nothing is written into them.
"""

from __future__ import annotations

import sys
from typing import Any

from collectives.arrays.exporters import buffers
from collectives.arrays.exporters.reached import Array, Reached, kind_of, plain, read_only

_INSTEAD = {
    "RaggedTensor": "give its {name}.flat_values and {name}.row_lengths() each for itself",
    "SparseTensor": "give tf.sparse.to_dense({name}), or its values and indices each for itself",
    "IndexedSlices": "give tf.convert_to_tensor({name}), or its values and indices each for itself",
    "KerasTensor": "it stands for values that are not there yet",
}


def read(x: Any, name: str, moved: bool) -> Array:
    check(x, name)
    if not hasattr(x, "__dlpack__"):
        return buffers.read(x, name, moved)
    try:
        return plain(memoryview(x))
    except (BufferError, TypeError, ValueError):  # a dtype that has no letter in the buffer protocol, such as bfloat16
        return plain(x)


def reach(x: Any, name: str, moved: bool) -> Reached:
    check(x, name)
    raise read_only(name, "TensorFlow tensor")


def check(x: Any, name: str) -> None:
    """Raises TypeError, with advice, unless `x` is a TensorFlow tensor that contains numbers.

    A tensor of a graph, for example, has no contents yet. `name`: what the error calls `x`.
    """
    kind = type(x).__name__
    if kind in _INSTEAD:
        raise TypeError(f"{name} is a {kind}, which is no array: {_INSTEAD[kind].format(name=name)}")
    if hasattr(x, "assign"):
        raise TypeError(
            f"{name} is a {kind_of(x)}, a variable, whose memory is not to be had: give numpy.asarray({name}), and "
            f"store a result by {name}.assign(result)"
        )
    dtype = getattr(x, "dtype", None)
    if dtype is None or "tensorflow" not in sys.modules:
        return
    if not hasattr(x, "numpy"):
        raise TypeError(
            f"{name} is part of a graph that is being traced, and has no values yet: call "
            "collectives.tensorflow.allreduce and its like there"
        )
    if getattr(dtype, "is_quantized", False):
        raise TypeError(f"{name} is quantized ({dtype.name}): give tf.bitcast({name}, tf.{dtype.name[1:]})")
    if dtype.name in ("string", "resource", "variant"):
        raise TypeError(
            f"{name} is a tensor of dtype {dtype.name}, whose elements are no numbers: give them as bytes, or use "
            "collectives.tensorflow.broadcast_object"
        )
