"""Runs a function of NumPy arrays on tensors, at once or as an operation of the graph being traced.

Invariant: nothing is copied that need not be. Arrays are views of tensors, which must not be written; results must
be new and `aligned`, and are handed over for good. Operations of one graph run in the order of their making.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from collectives.arrays import Array
from collectives.recycle import ALIGNMENT

_BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
_COPIED: Final = 16 << 10  # bytes: less is copied sooner than it is handed over
_LAST: Final = "_collectives_last_operation"  # of a graph: the next one made waits for it

_watchers: Final[list[list[BaseException]]] = []


class Spec(NamedTuple):
    """A result to come: TensorFlow's dtype, and the shape as far as it is known."""

    dtype: Any
    shape: Any = None


def call(
    function: Callable[..., Sequence[Array]], tensors: Sequence[Any], results: Sequence[Spec], name: str
) -> list[Any]:
    """`function(*arrays)` as tensors. Where it runs at once its errors come as they are.

    While a graph is traced they are for the caller of the graph, as tf.errors.UnknownError; see `typed_errors`.
    NotImplementedError where the graph is one for XLA, which cannot call back.
    """
    if tf.executing_eagerly():
        return [_tensor(array) for array in function(*map(_view, tensors))]
    graph = tf.compat.v1.get_default_graph()
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        raise NotImplementedError(
            f"{name}: XLA cannot call into Python, which collectives need here: "
            "use tf.function(jit_compile=False), or model.compile(jit_compile=False)"
        )

    def body(*arrays: Array) -> Sequence[Array]:
        try:
            return function(*arrays)
        except BaseException as error:
            for seen in _watchers:
                seen.append(error)
            raise

    before = getattr(graph, _LAST, None)
    with tf.control_dependencies([] if before is None else [before]):
        made = tf.numpy_function(body, list(tensors), [spec.dtype for spec in results], name=name)
    setattr(graph, _LAST, made[0].op if results else made)
    if not results:
        return []
    for tensor, spec in zip(made, results, strict=True):
        tensor.set_shape(spec.shape)
    return list(made)


@contextmanager
def typed_errors() -> Iterator[None]:
    """Around calls of a tf.function: what our operations raised in it is raised, instead of tf.errors.UnknownError.

    with collectives.tensorflow.typed_errors():
        loss = step(batch)                           # PeerLost, OpTimeout, DesyncError, ...
    """
    seen: list[BaseException] = []
    _watchers.append(seen)
    try:
        yield
    except tf.errors.OpError as error:
        if seen:
            raise seen[0] from error
        raise
    finally:
        _watchers[:] = [watcher for watcher in _watchers if watcher is not seen]


def _view(tensor: Any) -> Array:
    """The tensor's own memory, to be read only."""
    if tensor.dtype == tf.bfloat16:  # which has no letter in the buffer protocol
        return _view(tf.bitcast(tensor, tf.uint16)).view(_BFLOAT16)
    return np.asarray(memoryview(tensor))


def _tensor(array: Array) -> Any:
    if array.dtype == _BFLOAT16:
        return tf.bitcast(_tensor(array.view(np.uint16)), tf.bfloat16)
    # Handing over memory that begins elsewhere than on a cache line ends the process.
    if array.nbytes < _COPIED or array.ctypes.data % ALIGNMENT or array.dtype.kind not in "iuf":
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
