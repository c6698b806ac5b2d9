"""Two ranks use the callbacks, model averaging and normalization; test_callbacks.py reads what they tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import collectives
import collectives.keras as hooks
from collectives.keras.framework import keras, read
from tests.collectives.keras import worker

SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
Comm = collectives.Communicator
start = hooks.BroadcastGlobalVariablesCallback


def callbacks(comm: Comm) -> Any:
    path = Path(sys.argv[1]) / f"best{comm.rank}.keras"
    rates: list[float] = []
    model = worker.dense()
    model.compile(hooks.DistributedOptimizer(SGD(0.8)), loss="mse", metrics=["mae", "mape"])
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(float(read(model.optimizer.learning_rate)))
    )
    own: dict[str, float] = {}
    first = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: own.update(logs))
    given = [
        start(),
        first,
        hooks.MetricAverageCallback(),
        hooks.LearningRateWarmupCallback(0.8, warmup_epochs=2),
        hooks.LearningRateScheduleCallback(0.8, lambda epoch: 0.1, start_epoch=3),
        hooks.BestModelCheckpoint(path, monitor="loss"),
        record,
    ]
    share = worker.samples(comm.rank, 2)
    history = model.fit(*share, batch_size=8, epochs=4, verbose=0, callbacks=given, validation_data=share).history
    last = {name: values[-1] for name, values in history.items()}
    return own, last, rates, path.exists()


def built_by_its_first_batch(comm: Comm) -> Any:
    model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
    return worker.state(worker.fitted(model, comm, hooks.DistributedOptimizer(Adam(0.01))))


def model_averaging(comm: Comm) -> Any:
    found = []
    for every, optimizer, options in (
        (1, SGD(0.1, momentum=0.9), {}),
        (3, Adam(0.01), {}),
        (2, Adam(0.01), {"steps_per_execution": 2}),
    ):
        keras.utils.set_random_seed(100 + comm.rank)
        model = worker.dense()
        model.compile(optimizer, loss="mse", **options)
        averaging = hooks.ModelAveragingCallback(every)
        share = worker.samples(comm.rank, 4)
        model.fit(*share, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[start(), averaging])
        away = worker.apart(model, worker.alone(comm, "SGD", 0.1, momentum=0.9)) if every == 1 else None
        found.append([worker.state(model)[0], averaging.averages, away])
    return found


def averaging_refused(comm: Comm) -> Any:
    share = worker.samples(comm.rank, 2)

    def fit(optimizer: Any, every: int = 1, mine: Any = share, **options: Any) -> dict[str, str]:
        model = worker.dense(seed=1)
        model.compile(optimizer, loss="mse", **options)
        averaging = hooks.ModelAveragingCallback(every)
        return worker.raised(lambda: model.fit(mine, batch_size=None, verbose=0, callbacks=[averaging]))

    def batches(count: int) -> Any:
        for _ in range(count):
            yield share

    def known(count: int) -> Any:
        return tf.data.Dataset.from_tensor_slices(share).batch(8).repeat(count)

    return {
        "distributed": fit(hooks.DistributedOptimizer(SGD(0.1)), mine=known(1)),
        "execution": fit(SGD(0.1), 3, mine=known(1), steps_per_execution=2),
        "lengths": fit(SGD(0.1), mine=known(1 + comm.rank)),
        "steps": fit(SGD(0.1), 2, mine=batches(3 + comm.rank)),
    }


def scattered(comm: Comm) -> Any:
    x, y = np.arange(14.0).reshape(7, 2), np.arange(7)
    mine = hooks.scatter_data(*((x, y) if comm.rank == 1 else (None, None)), root_rank=1)
    every = hooks.scatter_data(*((x, y) if comm.rank == 1 else (None, None)), root_rank=1, drop=False)
    wrong = worker.raised(lambda: hooks.scatter_data(*((x, y[:3]) if comm.rank == 0 else (None, None))))
    return [part.tolist() for part in (*mine, *every)], wrong


# --- normalization


def _normalized(layer: Any) -> Any:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), layer, keras.layers.Dense(3)])


def normalization(comm: Comm) -> Any:
    """Against one process with the whole batch, far from mean 0."""
    model = _normalized(hooks.SyncBatchNormalization(momentum=0.8))
    model.compile(hooks.DistributedOptimizer(SGD(0.1)), loss="mse")
    x, y = worker.samples(comm.rank, 4)
    model.fit(x + 5, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[start()])
    keras.utils.set_random_seed(100)
    single = _normalized(keras.layers.BatchNormalization(momentum=0.8))
    if comm.rank == 0:
        single.compile(SGD(0.1), loss="mse")
        whole, targets = worker.together(comm.size, 4)
        single.fit(whole + 5, targets, batch_size=8 * comm.size, epochs=2, shuffle=False, verbose=0)
    path = Path(sys.argv[1]) / f"normalized{comm.rank}.keras"
    model.save(path)
    same = worker.digest(keras.models.load_model(path).weights) == worker.digest(model.weights)
    return worker.state(model), worker.apart(model, worker.of_rank_0(comm, single)), same


def normalization_masked(comm: Comm) -> Any:
    """Ranks with different numbers of samples, some of them masked, against all of them in one place."""
    random = np.random.default_rng(5)
    x = random.normal(3.0, 2.0, (6, 4, 2)).astype(np.float32)
    mask = random.random((6, 4)) < 0.6
    here = slice(0, 2) if comm.rank == 0 else slice(2, 6)
    layer = hooks.SyncBatchNormalization(momentum=0.5)
    layer.build((None, 4, 2))
    out = read(layer(tf.constant(x[here]), training=True, mask=tf.constant(mask[here])))
    counted = x[mask].astype(np.float64)
    mean, variance = counted.mean(0), counted.var(0)
    wanted = (x[here] - mean) / np.sqrt(variance + layer.epsilon)
    moving = [
        np.abs(read(layer.moving_mean) - mean / 2).max(),
        np.abs(read(layer.moving_variance) - 0.5 - variance / 2).max(),
    ]
    return float(np.abs(out - wanted).max()), [float(value) for value in moving], worker.digest(layer.weights)


SCENARIOS = (
    callbacks,
    built_by_its_first_batch,
    model_averaging,
    averaging_refused,
    scattered,
    normalization,
    normalization_masked,
)

if __name__ == "__main__":
    with collectives.init(timeout=60.0) as group:
        worker.run(group, [s for s in SCENARIOS if s.__name__ in sys.argv[2:] or not sys.argv[2:]])
