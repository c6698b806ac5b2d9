"""Run by test_backends.py with two processes: hvd.keras on another backend than TensorFlow."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

import collectives.horovod.keras as hvd
from tests.collectives.horovod.worker import run

hvd.init()
RANK = hvd.rank()


def backend() -> Any:
    return keras.backend.backend(), "tensorflow" in sys.modules


def values() -> Any:
    x = np.array([1, -4, 6], np.float32) * (RANK + 1)
    found = [
        hvd.allreduce(x),
        hvd.allreduce(x, compression=hvd.Compression.bf16),
        hvd.broadcast(x, 1),
        hvd.allgather(x),
    ]
    return [keras.ops.convert_to_numpy(value).tolist() for value in found]


def training() -> Any:
    """A layer that is everyone's and one of the rank's own, both from 0, with gradients of 1 and -4, times rank + 1."""
    inputs = keras.Input((2,))
    shared, own = (keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(2))
    model = keras.Model(inputs, keras.layers.add([shared(inputs), own(inputs)]))
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=own)
    model.compile(optimizer, loss=lambda _, predicted: keras.ops.sum(predicted))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    x = np.array([[1, -4]], np.float32) * (RANK + 1)
    history = model.fit(x, np.zeros((1, 1)), epochs=2, verbose=0, callbacks=callbacks)
    return [weights.ravel().tolist() for weights in model.get_weights()], history.history["loss"]


run([backend, values, training])
