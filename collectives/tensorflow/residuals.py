"""Error feedback: the rounding error of a gradient is kept, and added to the gradient of the next step.

Invariant: the kept error is finite, for any gradient.
"""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

from collectives.gradients.wire import Wire


class Residuals:
    """The rounding errors of compressed gradients, which are added to the gradients of the next training step.

    The rounding error of each gradient is a tf.Variable, made at the first step.
    """

    def __init__(self) -> None:
        self._kept: Final[dict[tuple[int, tuple[int, ...]], Any]] = {}

    def encoded(self, place: int, tensor: Any, wire: Wire) -> Any:
        """Returns gradient number `place` in compressed form, and keeps its rounding error for the next step.

        `tensor`: the gradient, to which the rounding error of the step before is added. `wire`: the dtype and the
        factor with which the gradient is sent. ValueError if the shape of `tensor` is not known.
        """
        if not tensor.shape.is_fully_defined():
            raise ValueError(f"error_feedback needs gradients of known shape, but that of {place} is {tensor.shape}")
        key = place, tuple(tensor.shape)
        if key not in self._kept:
            with tf.init_scope():  # the variable outlives the function that is traced
                self._kept[key] = tf.Variable(tf.zeros(tensor.shape, tensor.dtype), trainable=False)
        kept = self._kept[key]
        before = tf.cast(wire.before, tensor.dtype)
        wanted = tensor + kept
        sent = tf.cast(wanted * before, wire.dtype)
        seen = sent
        if wire.format is not None:
            seen = tf.numpy_function(wire.rounded, [sent], sent.dtype)
            seen.set_shape(sent.shape)
        lost = wanted - tf.cast(seen, tensor.dtype) / before
        with tf.control_dependencies([kept.assign(tf.where(tf.math.is_finite(lost), lost, tf.zeros_like(lost)))]):
            return tf.identity(sent)
