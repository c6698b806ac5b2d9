"""Two ranks do on one of Keras's backends what has to work on all of them; test_backends.py reads what they tell.

The last scenario ends rank 1. Ranks on another backend than TensorFlow have none: Keras's `set_random_seed` would
import it, which takes longer than all scenarios.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

if os.environ["KERAS_BACKEND"] != "tensorflow":
    sys.modules["tensorflow"] = None  # type: ignore[assignment]

import collectives
import collectives.keras as hooks
from collectives.arrays.wire import WireChoice
from collectives.keras.framework import keras, read
from collectives.keras.hook import hook_of
from tests.collectives.keras import worker

SGD, Adam, Scaled = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.LossScaleOptimizer
Comm = collectives.Communicator


def fit(comm: Comm) -> Any:
    optimizer = hooks.DistributedOptimizer(Adam(0.01, global_clipnorm=0.5))
    model = worker.fitted(worker.dense(), comm, optimizer)
    single = worker.alone(comm, "Adam", 0.01, global_clipnorm=0.5)
    return worker.state(model), worker.calls(model), worker.apart(model, single)


def compressed(comm: Comm) -> Any:
    found = []
    for options in (
        {"compression": "fp16"},
        {"compression": "bf16", "error_feedback": True, "bucket_bytes": 64},
        {"compression": "int8", "error_feedback": True},
    ):
        keras.utils.set_random_seed(100 + comm.rank)
        model = worker.fitted(worker.dense(), comm, hooks.DistributedOptimizer(SGD(0.1), **options))
        hook = hook_of(model.optimizer)
        assert hook is not None
        away = worker.apart(model, worker.alone(comm, "SGD", 0.1))
        found.append([worker.state(model), hook.exchange.bytes_sent, away])
    return found


def loss_scaling(comm: Comm) -> Any:
    """Rank 1 meets an infinity in its second batch."""
    model = worker.dense(seed=3)
    model.compile(hooks.DistributedOptimizer(Scaled(SGD(0.1), initial_scale=1024.0)), loss="mse")
    x, y = worker.samples(comm.rank, 4)
    if comm.rank == 1:
        x[8] = np.inf
    history = []
    for i in range(4):
        model.train_on_batch(x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8])
        scale = float(read(model.optimizer.dynamic_scale))
        history.append([*worker.state(model), scale, int(read(model.optimizer.iterations))])
    return history


def passes(comm: Comm) -> Any:
    """Gradients of two passes added up: by the hook, and by Keras."""
    found: list[Any] = []
    single = worker.alone(comm, "Adam", 0.01, gradient_accumulation_steps=2)
    for own in (True, False):
        keras.utils.set_random_seed(100 + comm.rank)
        try:
            if own:
                optimizer = hooks.DistributedOptimizer(Adam(0.01), backward_passes_per_step=2)
            else:
                optimizer = hooks.DistributedOptimizer(Adam(0.01, gradient_accumulation_steps=2))
        except NotImplementedError as error:
            found.append(str(error))
            continue
        model = worker.fitted(worker.dense(), comm, optimizer)
        found.append([worker.state(model), worker.calls(model), worker.apart(model, single)])
    return found


def averaged(comm: Comm) -> Any:
    model = worker.dense()
    model.compile(SGD(0.1, momentum=0.9), loss="mse")
    averaging = hooks.ModelAveragingCallback(1)
    callbacks = [hooks.BroadcastGlobalVariablesCallback(), averaging]
    share = worker.samples(comm.rank, 4)
    model.fit(*share, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    away = worker.apart(model, worker.alone(comm, "SGD", 0.1, momentum=0.9))
    return worker.state(model)[0], averaging.averages, away


def outer_steps(comm: Comm) -> Any:
    """With plain SGD inside, one step at a time, momentum outside is SGD with momentum on averaged gradients."""
    found = []
    wires: tuple[WireChoice | None, ...] = ("auto", "int8")  # nobody has measured these links
    for wire in wires:
        keras.utils.set_random_seed(100 + comm.rank)
        model = worker.dense()
        model.compile(SGD(0.1), loss="mse")
        diloco = hooks.DiLoCoCallback(1, SGD(1.0, momentum=0.9, nesterov=True), wire=wire)
        share = worker.samples(comm.rank, 4)
        model.fit(*share, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[diloco])
        away = worker.apart(model, worker.alone(comm, "SGD", 0.1, momentum=0.9, nesterov=True))
        found.append([worker.state(model)[0], diloco.averages, away])
    return found


def warmed_up(comm: Comm) -> Any:
    """The learning rate is that of each batch, also where the step keeps its state to itself."""
    model = worker.dense()
    model.compile(hooks.DistributedOptimizer(SGD(0.1)), loss="mse")
    callbacks = [hooks.BroadcastGlobalVariablesCallback(), hooks.LearningRateWarmupCallback(0.1, warmup_epochs=2)]
    share = worker.samples(comm.rank, 4)
    model.fit(*share, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    single = worker.dense(seed=100)
    if comm.rank == 0:
        single.compile(SGD(0.1), loss="mse")
        x, y = worker.together(comm.size, 4)
        for i in range(8):
            single.optimizer.learning_rate = 0.1 * (0.5 + 0.5 * (i + 1) / 8)
            part = slice(i % 4 * 16, i % 4 * 16 + 16)
            single.train_on_batch(x[part], y[part])
    return worker.state(model), worker.apart(model, worker.of_rank_0(comm, single))


def normalized(comm: Comm) -> Any:
    def network(layer: Any) -> Any:
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), layer, keras.layers.Dense(3)])

    model = network(hooks.SyncBatchNormalization(momentum=0.8))
    worker.fitted(model, comm, hooks.DistributedOptimizer(SGD(0.1)))
    keras.utils.set_random_seed(100)
    single = network(keras.layers.BatchNormalization(momentum=0.8))
    if comm.rank == 0:
        single.compile(SGD(0.1), loss="mse")
        x, y = worker.together(comm.size, 4)
        single.fit(x, y, batch_size=8 * comm.size, epochs=2, shuffle=False, verbose=0)
    return worker.state(model), worker.apart(model, worker.of_rank_0(comm, single))


def reloaded(comm: Comm) -> Any:
    model = worker.fitted(worker.dense(), comm, hooks.DistributedOptimizer(Adam(0.01)))
    path = Path(sys.argv[1]) / f"{keras.backend.backend()}{comm.rank}.keras"
    model.save(path)
    plain, loaded = keras.models.load_model(path), hooks.load_model(path)
    share = worker.samples(comm.rank, 4)
    same = worker.state(plain) == worker.state(model) == worker.state(loaded)
    for each in (model, loaded):
        each.fit(*share, batch_size=8, shuffle=False, verbose=0)
    return hook_of(plain.optimizer) is None, same, worker.state(loaded), worker.state(loaded) == worker.state(model)


class Unused(keras.layers.Layer):
    """A weight that only rank 1 uses."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.used = used

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(3,), name="weight", initializer="ones")

    def call(self, x: Any) -> Any:
        return x + self.weight if self.used else x


def missing(comm: Comm) -> Any:
    warnings.simplefilter("ignore")  # Keras warns of it, too
    found = []
    for how in ("error", "zero"):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), Unused(comm.rank == 1)])
        model.compile(hooks.DistributedOptimizer(SGD(0.1), missing=how), loss="mse")
        results = worker.raised(lambda: model.fit(*worker.samples(comm.rank, 2), batch_size=8, verbose=0))  # noqa: B023
        found.append([results, worker.state(model)])
    return found


def uneven(comm: Comm) -> Any:
    """Found out in the middle; the communicator is of no use afterwards."""
    share = worker.samples(comm.rank, 1)

    def batches() -> Iterator[Any]:
        for _ in range(3 - comm.rank):
            yield share

    with comm.dup() as own:
        model = worker.dense(seed=1)
        model.compile(hooks.DistributedOptimizer(SGD(0.1), comm=own), loss="mse")
        return worker.raised(lambda: model.fit(batches(), epochs=2, verbose=0))


def killed(comm: Comm) -> Any:
    def batches() -> Iterator[Any]:
        x, y = worker.samples(comm.rank, 8)
        for epoch in range(2):
            for i in range(8):
                if (epoch, i) == (1, 5) and comm.rank == comm.size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8]

    model = worker.dense(seed=1)
    model.compile(hooks.DistributedOptimizer(Adam(0.01)), loss="mse")
    try:
        model.fit(batches(), steps_per_epoch=8, epochs=2, verbose=0)
    except collectives.PeerLost as error:
        return worker.failure(error), error.ranks, worker.calls(model)


SCENARIOS = (
    fit,
    compressed,
    loss_scaling,
    passes,
    averaged,
    outer_steps,
    warmed_up,
    normalized,
    reloaded,
    missing,
    uneven,
    killed,
)

if __name__ == "__main__":
    with collectives.init(timeout=60.0) as group:
        worker.run(group, [s for s in SCENARIOS if s.__name__ in sys.argv[2:] or not sys.argv[2:]])
