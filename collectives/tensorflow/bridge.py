"""Calls a function that takes NumPy arrays with tensors, at once or as an operation of the graph being traced.

Invariant: no needless copies. The function gets views of the tensors' memory, and must not write to these views. It
returns new arrays in aligned memory, which TensorFlow takes over. Operations of one graph run in the order in which
they were added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from collectives.arrays.array import Array
from collectives.arrays.recycle import ALIGNMENT
from collectives.native.errors import CollectiveError
from collectives.tensorflow.errors import as_tensorflow

_BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
_COPIED: Final = 16 << 10  # bytes: copying less is faster than handing over the memory
_HANDED_OVER: Final = np.typecodes["AllInteger"] + np.typecodes["Float"]
_LAST: Final = "_collectives_last_operation"  # attribute of a graph: the operation for which the next one waits

_watchers: Final[list[list[BaseException]]] = []


class Spec(NamedTuple):
    """The dtype (a tf.DType) of a tensor that is not computed yet, and its shape as far as it is known."""

    dtype: Any
    shape: Any = None


def for_sessions() -> bool:
    """Whether TensorFlow operations that are made now are added to a TensorFlow 1 graph, which a session runs.

    A session runs only those operations of the graph that the user asks for, and those on which they depend.
    """
    return not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function


def call(
    function: Callable[..., Sequence[Array]],
    tensors: Sequence[Any],
    results: Sequence[Spec],
    name: str,
    *,
    alone: bool = False,
) -> list[Any]:
    """Calls `function` with `tensors` as NumPy arrays, and returns its results as tensors.

    In eager execution the function runs at once; its errors are raised as instances of both their own type and a class
    of `tf.errors`. In a traced graph an operation named `name` calls the function, and whoever runs the graph gets
    errors as tf.errors.UnknownError; see `typed_errors`.

    `results`: the dtypes and shapes of the results, for a graph. If `results` is empty in a graph, the returned list
    contains the operation. `alone` is for a TensorFlow 1 graph: the operation does not wait for earlier operations of
    the graph, and later operations do not wait for it. Raises NotImplementedError in a graph for XLA, which cannot call
    Python.
    """
    if tf.executing_eagerly():
        views = [_view(tensor) for tensor in tensors]
        try:
            arrays = function(*views)
        except CollectiveError as error:
            raise as_tensorflow(error) from error.__cause__
        return [_tensor(array) for array in arrays]
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

    chained = not (alone and for_sessions())
    before = getattr(graph, _LAST, None) if chained else None
    with tf.control_dependencies([] if before is None else [before]):
        made = tf.numpy_function(body, list(tensors), [spec.dtype for spec in results], name=name)
    operation = made[0].op if results else made
    if chained:
        setattr(graph, _LAST, operation)
    if not results:
        return [operation]
    for tensor, spec in zip(made, results, strict=True):
        tensor.set_shape(spec.shape)
    return list(made)


@contextmanager
def typed_errors() -> Iterator[None]:
    """A context manager, or decorator, in which a tf.function raises this library's errors with their own types.

        with collectives.tensorflow.typed_errors():
            loss = step(batch)           # raises e.g. PeerLost, OpTimeout or DesyncError

    Otherwise TensorFlow reports these errors only as tf.errors.UnknownError. In the context manager the errors are
    instances of both types.
    """
    seen: list[BaseException] = []
    _watchers.append(seen)
    try:
        yield
    except tf.errors.OpError as error:
        if seen and not isinstance(error, CollectiveError):
            raise as_tensorflow(seen[0]) from error
        raise
    finally:
        _watchers[:] = [watcher for watcher in _watchers if watcher is not seen]


def _view(tensor: Any) -> Array:
    """The tensor's own memory, which must not be written."""
    if tensor.dtype == tf.bfloat16:  # the buffer protocol has no letter for it
        return _view(tf.bitcast(tensor, tf.uint16)).view(_BFLOAT16)
    if tensor.dtype.name.startswith("float8"):  # nor for these
        copy: Array = tensor.numpy()
        return copy
    return np.asarray(memoryview(tensor))


def _tensor(array: Array) -> Any:
    if array.dtype == _BFLOAT16:
        return tf.bitcast(_tensor(array.view(np.uint16)), tf.bfloat16)
    # If TensorFlow gets memory that does not begin at a cache line, the process ends.
    if array.nbytes < _COPIED or array.ctypes.data % ALIGNMENT or array.dtype.char not in _HANDED_OVER:
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
