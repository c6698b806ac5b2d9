"""Run by worker_tensorflow.py, since importing TensorFlow takes so long: Keras 3 on TensorFlow."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import collectives.horovod.keras as hvd_keras
import collectives.horovod.tensorflow as hvd_tensorflow
import collectives.horovod.tensorflow.keras as hvd
from collectives.horovod.compression import NoneCompressor
from tests.collectives.horovod import signatures
from tests.collectives.horovod.worker import differences, digest, example, raised

FOLDER = Path(sys.argv[1])

hvd.init()
RANK = hvd.rank()


def keras_names() -> Any:
    return [
        *differences(hvd_keras, signatures.KERAS, signatures.VALUES["KERAS"]),
        *differences(hvd, signatures.TENSORFLOW_KERAS, signatures.VALUES["TENSORFLOW_KERAS"]),
    ]


def values() -> Any:
    x = np.array([1, -4, 6], np.float32) * (RANK + 1)
    found = {
        "average": hvd.allreduce(x),
        "sum": hvd.allreduce(x, op=hvd.Sum, name="total"),
        "scaled": hvd.allreduce(x, prescale_factor=0.5, postscale_factor=8.0),
        "fp16": hvd.allreduce(x, compression=hvd.Compression.fp16),
        "number": hvd.allreduce(float(RANK)),
        "integers": hvd.allreduce([3 + RANK, -8 + RANK]),
        "scaled integers": hvd.allreduce([3, -8], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        "scaled average": hvd.allreduce([3 + RANK, -8 + RANK], postscale_factor=1.5),
        "allgather": hvd.allgather([[RANK]] * (RANK + 1)),
        "broadcast": hvd.broadcast(x, 1),
    }
    assert all(tf.is_tensor(value) for value in found.values())
    results = {name: value.numpy().tolist() for name, value in found.items()}
    results["reducescatter"] = hvd.reducescatter([1.0, 2.0]).numpy().tolist()
    results["refused"] = [
        raised(hvd.allreduce, True, prescale_factor=0.5),
        *(raised(f, None, *rest) for f, rest in ((hvd.allreduce, ()), (hvd.allgather, ()), (hvd.broadcast, (0,)))),
        raised(hvd.broadcast_global_variables, 0),
        raised(hvd.allreduce, x, op=hvd_keras.Adasum),
    ]
    return results


# --- the optimizer

X = np.array([[1, -4]], np.float32) * (RANK + 1)


def _model(layers: int = 1) -> Any:
    """Its loss is the sum of the outputs; layers of one weight for each input, all 0."""
    inputs = keras.Input((2,))
    made = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(layers)]
    outputs = [layer(inputs) for layer in made]
    return keras.Model(inputs, outputs[0] if layers == 1 else keras.layers.add(outputs))


def _loss(_: Any, predicted: Any) -> Any:
    return keras.ops.sum(predicted)


def _trained(passes: int = 1, layers: int = 1, local: int | None = None, **options: Any) -> Any:
    """Weights after gradients of 1 and -4, times rank + 1, and times 1, 2, ... in each pass."""
    model = _model(layers)
    plain = keras.optimizers.SGD(1.0)
    chosen = None if local is None else model.layers[1 + local]
    wrap = hvd.DistributedOptimizer if local is None else hvd_keras.PartialDistributedOptimizer
    more: dict[str, Any] = {} if local is None else {"local_layers": chosen}
    optimizer = wrap(plain, backward_passes_per_step=passes, **more, **options)
    assert optimizer is plain and isinstance(optimizer, keras.optimizers.SGD)
    model.compile(optimizer, loss=_loss)
    for i in range(passes):
        model.train_on_batch(X * (i + 1), np.zeros((1, 1)))
    return [weights.ravel().tolist() for weights in model.get_weights()]


class Halved(NoneCompressor):
    """A compressor of a user's, made of Horovod's."""

    @staticmethod
    def compress(tensor: Any) -> Any:
        return tensor / 2, "half"

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        assert ctx == "half"
        return tensor * 2


def optimizers() -> Any:
    with warnings.catch_warnings(record=True) as results:
        warnings.simplefilter("always")
        grouped = _trained(groups=2)
        hvd_tensorflow.DistributedOptimizer(keras.optimizers.SGD(), use_locking=True)
    return {
        "average": _trained(),
        "sum": _trained(op=hvd.Sum),
        "predivided": _trained(gradient_predivide_factor=2.0),
        "fp16": _trained(compression=hvd.Compression.fp16),
        "own": _trained(compression=Halved),
        "passes": _trained(2),
        "mean of passes": _trained(2, average_aggregated_gradients=True),
        "grouped": grouped,
        "warned": [text for w in results if (text := str(w.message).partition(" ")[0]) in ("groups", "use_locking")],
    }


def local_and_sets() -> Any:
    only = hvd.add_process_set([1])
    found = [
        _trained(process_set=only),
        _trained(layers=2, local=1),
        _trained(layers=2, local=1, scale_local_gradients=False),
        _trained(2, layers=2, local=1),
    ]
    assert hvd.remove_process_set(only)
    return found


def keras_refused() -> Any:
    unbuilt = keras.layers.Dense(1)
    partial = hvd_keras.PartialDistributedOptimizer
    return {
        "op": raised(hvd.DistributedOptimizer, keras.optimizers.SGD(), op=hvd_tensorflow.Min),
        "adasum": raised(hvd.DistributedOptimizer, keras.optimizers.SGD(), op=hvd_tensorflow.Adasum),
        "predivide": raised(
            hvd.DistributedOptimizer, keras.optimizers.SGD(), op=hvd.Sum, gradient_predivide_factor=2.0
        ),
        "passes": raised(hvd.DistributedOptimizer, keras.optimizers.SGD(), backward_passes_per_step=0),
        "twice": raised(hvd.DistributedOptimizer, hvd.DistributedOptimizer(keras.optimizers.SGD())),
        "unbuilt": raised(partial, keras.optimizers.SGD(), local_layers=[unbuilt]),
        "no layer": raised(partial, keras.optimizers.SGD(), local_layers=[3]),
        "legacy": raised(hvd.load_model, "model.keras", legacy_opts=True),
        "fused": raised(hvd_tensorflow.SyncBatchNormalization, fused=True),
        "checkpoint": raised(hvd.callbacks.BestModelCheckpoint),
        "no rate": raised(hvd.callbacks.LearningRateWarmupCallback, None),
    }


def without_an_exchange() -> Any:
    """What Horovod did on Keras 3: train, and tell nobody that ranks drift apart."""

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self(data[0]))
            weights = self.trainable_variables
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(gradient)
            return {"loss": loss}

    model = Model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()))
    return raised(model.fit, X, np.zeros((1, 1)), verbose=0)


# --- callbacks, layers, files


class _Rates(keras.callbacks.Callback):
    """Learning rates, as each batch begins."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(round(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)), 5))


def _fit(callbacks: list[Any], epochs: int, momentum: float = 0.0) -> Any:
    model, rates = _model(), _Rates()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=momentum)), loss=_loss)
    x = np.repeat(X, 2, axis=0)
    history = model.fit(x, np.zeros((2, 1)), batch_size=1, epochs=epochs, verbose=0, callbacks=[*callbacks, rates])
    return model, rates.seen, history.history


def schedules() -> Any:
    schedule, warmup = hvd.callbacks.LearningRateScheduleCallback, hvd.callbacks.LearningRateWarmupCallback
    with warnings.catch_warnings(record=True) as results:
        warnings.simplefilter("always")
        decayed = _fit([schedule(0.8, 0.5, start_epoch=1)], 4)[1]
        momentum = [str(w.message) for w in results if "momentum" in str(w.message)]
        warmed = _fit([warmup(0.8, warmup_epochs=2)], 3, momentum=0.5)[1]
        _fit([warmup(0.8, warmup_epochs=1, momentum_correction=False)], 1, momentum=0.5)
        corrected = [str(w.message) for w in results if "momentum" in str(w.message)]
    return decayed, warmed, momentum, corrected


def metrics_and_checkpoints() -> Any:
    path = FOLDER / f"best{RANK}.keras"
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=path)
    model, _, history = _fit([hvd.callbacks.MetricAverageCallback(), best], 2)
    found = [history["loss"], path.exists()]
    loaded = FOLDER / f"whole{RANK}.keras"
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    plain.set_weights(model.get_weights())
    plain.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), loss="mse")
    plain.save(loaded)
    again = hvd.load_model(loaded, compression=hvd.Compression.fp16)
    again.fit(X, np.zeros((1, 1)), verbose=0)
    keras.models.load_model(loaded).fit(X, np.zeros((1, 1)), verbose=0)  # the plain optimizer
    return [*found, type(again.optimizer).__name__, digest(again.get_weights())]


def broadcasts() -> Any:
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    local = model.layers[1].kernel
    before = digest([local.numpy()])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local])
    model.fit(X, np.zeros((1, 1)), verbose=0, callbacks=[callback])
    kept = digest([local.numpy()]) == before
    others = digest(weight.numpy() for weight in model.weights if weight is not local)
    model.fit(X, np.zeros((1, 1)), verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(1)])
    dropout = keras.layers.Dropout(0.5)  # has the state of a generator of random numbers
    random = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), dropout])
    hvd_tensorflow.broadcast_variables(random.variables, root_rank=0)
    assert len(random.variables) == 3
    return kept, others, digest(model.get_weights()), digest(v.numpy() for v in random.variables), before


def normalization() -> Any:
    layer = hvd_tensorflow.SyncBatchNormalization(fused=False, momentum=0.0)
    model = keras.Sequential([keras.Input((2,)), layer])
    layer(X, training=True)
    path = FOLDER / f"normalized{RANK}.keras"
    model.save(path)
    again = keras.models.load_model(path)
    return [v.numpy().tolist() for v in again.layers[0].non_trainable_variables], type(again.layers[0]).__name__


# --- scripts


def keras_script() -> Any:
    left = example("horovod_keras_digits.py")
    return left.get("exit"), float(left["right"].mean()), digest(left["model"].get_weights())


def keras_script_that_is_not_distributed() -> Any:
    wrapped = "opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)"
    return example("horovod_keras_digits.py", ("EPOCHS, WANTED = 32, 8", "EPOCHS, WANTED = 32, 1"), (wrapped, "")).get(
        "exit"
    )


SCENARIOS: list[Callable[[], Any]] = [
    keras_names, values, optimizers, local_and_sets, keras_refused, without_an_exchange, schedules,
    metrics_and_checkpoints, broadcasts, normalization, keras_script, keras_script_that_is_not_distributed,
]  # fmt: skip
