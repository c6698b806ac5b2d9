"""SyncBatchNormalization: batch statistics over the batches of all ranks.

Invariant: mean, variance and so the moving statistics have the same bits on every rank.
"""

from __future__ import annotations

from typing import Any

from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.keras import backends
from collectives.keras.framework import keras

ops = keras.ops


@keras.saving.register_keras_serializable("collectives")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Keras's BatchNormalization, with statistics over the batches of all ranks; inference is unchanged.

    Each training step runs one allreduce of 2 * channels + 1 numbers in the forward pass, and one in the backward pass.
    So every rank has to call the layer equally often. Ranks may have batches of different sizes, and masks: each
    unmasked sample of any rank has the same weight. If `comm` is None, the layer uses the communicator that
    `collectives.init` made. `comm` is not saved with the model.
    """

    def __init__(self, *args: Any, comm: Communicator | None = None, **kwargs: Any) -> None:
        if kwargs.pop("synchronized", False):
            raise ValueError("synchronized=True is for tf.distribute: this layer is synchronized by itself")
        super().__init__(*args, **kwargs)
        # Avoids Keras's own __setattr__, which looks for state to track and save.
        object.__setattr__(self, "_comm", comm)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        config.pop("synchronized", None)
        return config

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        axes = self._reduction_axes
        # Sums of squares lose digits if the mean is far from 0. The moving mean is near the mean and the same on every
        # rank, so it is subtracted first.
        origin = ops.stop_gradient(ops.cast(self.moving_mean, inputs.dtype))
        shape = [1] * len(inputs.shape)
        shape[self.axis] = inputs.shape[self.axis]
        centred = inputs - ops.reshape(origin, shape)
        counts = ops.ones_like(inputs) if mask is None else _spread(mask, inputs)
        centred = centred * counts
        mine = [ops.sum(counts), ops.sum(centred, axes), ops.sum(centred * centred, axes)]
        channels = inputs.shape[self.axis]
        packed = ops.concatenate([ops.reshape(mine[0] / channels, [1]), mine[1], mine[2]])
        total = backends.current().allreduce(packed, default(self._comm))
        count = ops.maximum(total[0], 1.0)
        mean = total[1 : 1 + channels] / count
        variance = ops.maximum(total[1 + channels :] / count - mean * mean, 0.0)
        return mean + origin, variance


def _spread(mask: Any, inputs: Any) -> Any:
    """A tensor of the inputs' shape and dtype: 1 for samples that `mask` keeps, and 0 for masked samples."""
    return ops.broadcast_to(ops.expand_dims(ops.cast(mask, inputs.dtype), -1), ops.shape(inputs))
