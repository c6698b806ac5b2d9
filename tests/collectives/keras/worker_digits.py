"""Ranks with different seeds train on scikit-learn's digits; test_digits.py reads what they tell."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import collectives
import collectives.keras as hooks
from collectives.keras.framework import keras
from collectives.keras.hook import hook_of
from tests.collectives.keras import worker

BATCH, STEPS, EPOCHS = 32, 14, 2


def network() -> Any:
    layers = [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(10, activation="softmax")]
    return keras.Sequential([keras.Input((64,)), *layers])


def trained(optimizer: Any, x: Any, y: Any, batch: int, *callbacks: Any) -> Any:
    model = network()
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def adam() -> Any:
    return keras.optimizers.Adam(0.005, global_clipnorm=0.5)


def data(comm: collectives.Communicator) -> tuple[Any, Any, Any, Any]:
    """Everything, in the order of one process's batches, and this rank's part of each batch."""
    pixels, digits = load_digits(return_X_y=True)
    count = BATCH * STEPS * comm.size
    x, y = (pixels[:count] / 16).astype(np.float32), digits[:count]
    mine = np.arange(count) // BATCH % comm.size == comm.rank
    return x, y, x[mine], y[mine]


@functools.cache
def alone(comm: collectives.Communicator) -> tuple[list[Any], float]:
    """Weights and accuracy after rank 0 has trained by itself."""
    x, y, _, _ = data(comm)
    keras.utils.set_random_seed(100)  # rank 0's
    accuracy = np.zeros(1)
    if comm.rank == 0:
        model = trained(adam(), x, y, BATCH * comm.size)
        accuracy[0] = model.evaluate(x, y, verbose=0)[1]
    else:
        model = network()
    return worker.of_rank_0(comm, model), float(comm.broadcast(accuracy)[0])


def same_bits(comm: collectives.Communicator) -> Any:
    _, _, mine, answers = data(comm)
    start = hooks.BroadcastGlobalVariablesCallback(0)
    model = trained(hooks.DistributedOptimizer(adam()), mine, answers, BATCH, start)
    weights, accuracy = alone(comm)
    return worker.state(model), worker.apart(model, weights), worker.calls(model), accuracy


def disabled(comm: collectives.Communicator) -> Any:
    """Gradients are not exchanged: noticed, and where nobody looks, there in the weights."""
    _, _, mine, answers = data(comm)
    optimizer = hooks.DistributedOptimizer(adam())
    hook = hook_of(optimizer)
    assert hook is not None
    hook.inside = True  # as if it had exchanged already
    start = hooks.BroadcastGlobalVariablesCallback(0)
    noticed = worker.raised(lambda: trained(optimizer, mine, answers, BATCH, start))
    model = trained(adam(), mine, answers, BATCH, start)
    return noticed, worker.state(model), worker.apart(model, alone(comm)[0])


if __name__ == "__main__":
    with collectives.init(timeout=60.0) as group:
        worker.run(group, [same_bits, disabled])
