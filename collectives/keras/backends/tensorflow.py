"""Keras on TensorFlow: gradients are exchanged by TensorFlow operations, in traced and in eager training steps.

Invariant: objects that are made here while TensorFlow traces a function outlive that function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import tensorflow as tf

import collectives.tensorflow
from collectives.core.communicator import Communicator
from collectives.keras.backends import Accumulate, Options
from collectives.keras.hook import Exchange
from collectives.tensorflow.bridge import typed_errors as _typed_errors
from collectives.tensorflow.exchange import GradientExchange

F = TypeVar("F", bound=Callable[..., Any])

NOT_COMPILED: Final = "XLA cannot talk to other ranks in the middle of a step: compile the model with jit_compile=False"


def exchange(comm: Communicator, options: Options) -> Exchange:
    return GradientExchange(
        comm,
        op=options.op,
        compression=options.compression,
        bucket_bytes=options.bucket_bytes,
        sparse_as_dense=options.sparse_as_dense,
        missing=options.missing,
        error_feedback=options.error_feedback,
        timeout=options.timeout,
        name=options.name,
    )


def typed_errors(found: Exchange) -> AbstractContextManager[None]:
    return _typed_errors()


def accumulate(every: int, sparse_as_dense: bool) -> Accumulate:
    return _Accumulate(every, sparse_as_dense)


def allreduce(tensor: Any, comm: Communicator) -> Any:
    return collectives.tensorflow.allreduce(tensor, op="sum", comm=comm)


def after(gradients: Sequence[Any]) -> AbstractContextManager[Any]:
    # The last gradient is exchanged first, so nothing waits longer than needed. Without this, the optimizer's step
    # counter, which depends on no gradient, is also incremented when data of unknown length ends, and only on some
    # ranks.
    there = [g for g in gradients if g is not None][-1:]
    return tf.control_dependencies([g.values if isinstance(g, tf.IndexedSlices) else g for g in there])


def unconverted(function: F) -> F:
    kept: F = tf.autograph.experimental.do_not_convert(function)
    return kept


class _Accumulate:
    def __init__(self, every: int, sparse_as_dense: bool) -> None:
        self._every: Final = every
        self._sparse_as_dense: Final = sparse_as_dense
        self._count: Any = None
        self._sums: dict[int, Any] = {}

    def __call__(self, gradients: Sequence[Any], step: Callable[[list[Any]], object]) -> None:
        there = {i: self._dense(i, g) for i, g in enumerate(gradients) if g is not None}
        with tf.init_scope():
            if self._count is None:
                self._count = tf.Variable(0, dtype=tf.int64, trainable=False)
            for i, g in there.items():
                if i not in self._sums:
                    self._sums[i] = tf.Variable(tf.zeros(g.shape, g.dtype), trainable=False)
        with after(gradients):  # a pass without data must not count
            self._count.assign_add(1)
        for i, g in there.items():
            self._sums[i].assign_add(g)

        def whole() -> None:
            means = {i: self._sums[i] / tf.cast(self._every, self._sums[i].dtype) for i in there}
            step([means.get(i) for i in range(len(gradients))])
            for i in there:
                self._sums[i].assign(tf.zeros_like(self._sums[i]))

        tf.cond(self._count % self._every == 0, whole, _nothing)

    def _dense(self, place: int, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._sparse_as_dense:
            raise ValueError(
                f"gradient {place} is sparse, and backward_passes_per_step adds gradients up: give sparse_as_dense=True"
            )
        return tf.convert_to_tensor(gradient)


def _nothing() -> None: ...
