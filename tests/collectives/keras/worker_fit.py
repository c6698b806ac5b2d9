"""Two ranks train Keras models on TensorFlow in every way there is; test_fit.py reads what they tell."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import collectives
import collectives.keras as hooks
from collectives.keras.framework import keras, read
from collectives.keras.hook import hook_of
from tests.collectives.keras import worker

SGD, Adam, Scaled = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.LossScaleOptimizer
Comm = collectives.Communicator
start = hooks.BroadcastGlobalVariablesCallback
alone, fitted = worker.alone, worker.fitted


def steps_per_execution(comm: Comm) -> Any:
    model = fitted(worker.dense(), comm, hooks.DistributedOptimizer(Adam(0.01)), steps_per_execution=3)
    return worker.state(model), worker.calls(model), worker.apart(model, alone(comm, "Adam", 0.01))


def run_eagerly(comm: Comm) -> Any:
    model = fitted(worker.dense(), comm, hooks.DistributedOptimizer(Adam(0.01)), run_eagerly=True)
    return worker.state(model), worker.calls(model), worker.apart(model, alone(comm, "Adam", 0.01))


def train_on_batch(comm: Comm) -> Any:
    model = worker.dense()
    model.compile(hooks.DistributedOptimizer(SGD(0.1, momentum=0.9)), loss="mse")
    hooks.broadcast_global_variables(model)
    x, y = worker.samples(comm.rank, 4)
    for i in range(4):
        model.train_on_batch(x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8])
    return worker.state(model), worker.calls(model), worker.apart(model, alone(comm, "SGD", 0.1, 1, momentum=0.9))


def custom_loop(comm: Comm) -> Any:
    """As users write it: autograph on, apply_gradients in one loop and apply in the other."""
    found = []
    for through_apply in (False, True):
        keras.utils.set_random_seed(100 + comm.rank)
        model = worker.dense()
        optimizer = hooks.DistributedOptimizer(Adam(0.01))
        model.compile(optimizer)  # for broadcast_global_variables to know it
        hooks.broadcast_global_variables(model)

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)  # noqa: B023
            grads = tape.gradient(loss, model.trainable_variables)  # noqa: B023
            if through_apply:  # noqa: B023
                optimizer.apply(grads, model.trainable_variables)  # noqa: B023
            else:
                optimizer.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B023, B905
            return loss

        x, y = worker.samples(comm.rank, 4)
        for _ in range(2):
            for i in range(4):
                step(tf.constant(x[i * 8 : i * 8 + 8]), tf.constant(y[i * 8 : i * 8 + 8]))
        found.append([worker.state(model), worker.calls(model), worker.apart(model, alone(comm, "Adam", 0.01))])
    return found


def unknown_length(comm: Comm) -> Any:
    """Keras counts one more step where data ends within it; here it must not, or ranks' counts could differ."""
    model = worker.dense(seed=1)
    model.compile(hooks.DistributedOptimizer(Adam(0.01)), loss="mse")
    share = worker.samples(comm.rank, 1)
    made, calls = [], []
    for _ in range(3):
        model.fit((share for _ in range(3)), verbose=0)
        made.append(int(read(model.optimizer.iterations)))
        calls.append(worker.calls(model))
    return made, calls


# --- sparse and missing gradients


class Words(keras.Model):
    """An embedding, and a variable that nothing uses."""

    def __init__(self, used: bool = False) -> None:
        super().__init__()
        self.used = used
        self.embedding = keras.layers.Embedding(20, 4)
        self.out = keras.layers.Dense(1)

    def build(self, shape: Any) -> None:
        self.unused = self.add_weight(shape=(3,), name="unused", initializer="ones")
        self.embedding.build(shape)
        self.out.build((None, 4))
        self.built = True

    def call(self, words: Any) -> Any:
        extra = tf.reduce_sum(self.unused) if self.used else 0.0
        return self.out(tf.reduce_mean(self.embedding(words), axis=1)) + extra


def _words(rank: int) -> tuple[Any, Any]:
    random = np.random.default_rng(rank)
    words = random.integers(0, 20, (16, 5))
    words[0, 0] = rank  # so that ranks have different rows
    return words.astype(np.int32), random.normal(size=(16, 1)).astype(np.float32)


def embedding(comm: Comm) -> Any:
    warnings.simplefilter("ignore")  # Keras warns of the unused variable
    seen: list[str] = []
    model = Words()
    model.build((None, 5))
    optimizer = hooks.DistributedOptimizer(Adam(0.01))
    exchange = hook_of(optimizer).exchange  # type: ignore[union-attr]
    given = type(exchange).__call__

    def spying(self: Any, gradients: Any, variables: Any = None) -> Any:
        seen.extend(type(g).__name__ for g in gradients)
        return given(self, gradients, variables)

    type(exchange).__call__ = spying  # type: ignore[method-assign]
    model.compile(optimizer, loss="mse")
    model.fit(*_words(comm.rank), batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[start()])
    type(exchange).__call__ = given  # type: ignore[method-assign]
    keras.utils.set_random_seed(100)
    single = Words()
    single.build((None, 5))
    if comm.rank == 0:
        single.compile(Adam(0.01), loss="mse")
        shares = [_words(rank) for rank in range(comm.size)]
        whole = [np.concatenate([share[p][i : i + 8] for i in (0, 8) for share in shares]) for p in (0, 1)]
        single.fit(*whole, batch_size=8 * comm.size, epochs=3, shuffle=False, verbose=0)
    return worker.state(model), seen, worker.apart(model, worker.of_rank_0(comm, single))


def embedding_passes(comm: Comm) -> Any:
    """Sparse gradients of two passes added up as dense ones, and one process that takes all batches at once."""
    warnings.simplefilter("ignore")  # Keras warns of the unused variable
    keras.utils.set_random_seed(100)
    model = Words()
    model.build((None, 5))
    optimizer = hooks.DistributedOptimizer(SGD(0.1), backward_passes_per_step=2, sparse_as_dense=True)
    model.compile(optimizer, loss="mse")
    model.fit(*_words(comm.rank), batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[start()])
    keras.utils.set_random_seed(100)
    single = Words()
    single.build((None, 5))
    if comm.rank == 0:
        single.compile(SGD(0.1), loss="mse")
        whole = [np.concatenate([_words(rank)[part] for rank in range(comm.size)]) for part in (0, 1)]
        single.fit(*whole, batch_size=16 * comm.size, epochs=3, shuffle=False, verbose=0)
    return worker.state(model), worker.apart(model, worker.of_rank_0(comm, single))


def missing_on_one_rank(comm: Comm) -> Any:
    warnings.simplefilter("ignore")
    found = []
    for missing in ("error", "zero"):
        keras.utils.set_random_seed(7)
        model = Words(used=comm.rank == 1)
        model.build((None, 5))
        model.compile(hooks.DistributedOptimizer(Adam(0.01), missing=missing), loss="mse")
        words = _words(comm.rank)
        results = worker.raised(lambda: model.fit(*words, batch_size=8, verbose=0))  # noqa: B023
        found.append([results, worker.state(model)])
    return found


# --- mixed precision


def _half(optimizer: Any) -> Any:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = worker.dense(seed=3)
        model.compile(optimizer, loss="mse")
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def mixed_precision(comm: Comm) -> Any:
    """Rank 1 meets an infinity in its second batch."""
    model = _half(hooks.DistributedOptimizer(Scaled(SGD(0.1), initial_scale=1024.0)))
    x, y = worker.samples(comm.rank, 4)
    if comm.rank == 1:
        x[8] = 1e30
    history = []
    for i in range(4):
        model.train_on_batch(x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8])
        history.append(
            [*worker.state(model), float(read(model.optimizer.dynamic_scale)), int(read(model.optimizer.iterations))]
        )
    return history


def wrong_nesting(comm: Comm) -> Any:
    at_compile = worker.raised(lambda: _half(hooks.DistributedOptimizer(SGD(0.1))))
    by_hand = worker.raised(lambda: Scaled(hooks.DistributedOptimizer(SGD(0.1))))
    scaled = Scaled(SGD(0.1))
    hooks.DistributedOptimizer(scaled.inner_optimizer)  # afterwards, behind its back
    model = worker.dense()
    model.compile(scaled, loss="mse")
    at_fit = worker.raised(lambda: model.fit(*worker.samples(comm.rank, 1), verbose=0))
    again = worker.raised(lambda: hooks.DistributedOptimizer(scaled))
    return at_compile, by_hand, at_fit, again


# --- saving


def saved_and_loaded(comm: Comm) -> Any:
    model = fitted(worker.dense(), comm, hooks.DistributedOptimizer(Adam(0.01)))
    path = Path(sys.argv[1]) / f"model{comm.rank}.keras"
    model.save(path)
    plain = keras.models.load_model(path)
    loaded = hooks.load_model(path)
    kinds = [type(plain.optimizer) is Adam, hook_of(plain.optimizer) is None, hook_of(loaded.optimizer) is not None]
    same = worker.state(plain) == worker.state(model) == worker.state(loaded)
    wrapped = keras.models.load_model(path)
    hooks.DistributedOptimizer(wrapped.optimizer)  # by hand, without compiling again
    share = worker.samples(comm.rank, 4)
    for each in (model, loaded, wrapped):
        each.fit(*share, batch_size=8, shuffle=False, verbose=0)
    after = [worker.state(each) for each in (model, loaded, wrapped)]
    return kinds, same, after, model.optimizer.get_config() == plain.optimizer.get_config()


# --- hooks that are not called


def trained_before_distributed(comm: Comm) -> Any:
    """The step that was traced before goes on without the hook."""
    model = worker.dense()
    model.compile(Adam(0.01), loss="mse")
    share = worker.samples(comm.rank, 2)
    model.fit(*share, batch_size=8, verbose=0)
    model.train_on_batch(share[0][:8], share[1][:8])
    hooks.DistributedOptimizer(model.optimizer)
    unsynchronised = worker.raised(lambda: model.fit(*share, batch_size=8, verbose=0, epochs=5))
    batch = worker.raised(lambda: model.train_on_batch(share[0][:8], share[1][:8]))
    slots = len(model.optimizer.variables)
    model.compile(model.optimizer, loss="mse")  # as the error says
    hooks.broadcast_global_variables(model)
    model.fit(*share, batch_size=8, verbose=0)
    return unsynchronised, batch, worker.state(model), [slots, len(model.optimizer.variables)]


class Ignoring(keras.Sequential):
    """Trains by itself."""

    def train_step(self, data: Any) -> Any:
        for weight in self.trainable_weights:
            weight.assign(weight * 0.9)
        return {"loss": tf.constant(0.0)}


def never_used(comm: Comm) -> Any:
    model = Ignoring([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(hooks.DistributedOptimizer(Adam(0.01)), loss="mse")
    epochs: list[int] = []
    seen = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch))
    share = worker.samples(comm.rank, 2)
    given = keras.callbacks.CallbackList([seen], model=model, epochs=5, steps=2)
    results = worker.raised(lambda: model.fit(*share, batch_size=8, epochs=5, verbose=0, callbacks=given))
    return results, epochs, given.callbacks == [seen]


class Two(keras.Sequential):
    """Steps by an optimizer that Keras does not know of."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        self.own.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def own_optimizer(comm: Comm) -> Any:
    found = []
    for bypassed in (False, True):
        keras.utils.set_random_seed(1)
        model = Two([keras.Input((6,)), keras.layers.Dense(3)])
        model.own = hooks.DistributedOptimizer(SGD(0.1))
        hook = hook_of(model.own)
        assert hook is not None
        hook.inside = bypassed
        model.compile()
        results = worker.raised(lambda: model.fit(*worker.samples(comm.rank, 2), batch_size=8, verbose=0))  # noqa: B023
        found.append([results, hook.exchange.calls, worker.digest(model.weights)])
    return found


def refused(comm: Comm) -> Any:
    share = worker.samples(comm.rank, 1)

    def compiled() -> None:
        worker.dense().compile(hooks.DistributedOptimizer(SGD(0.1)), loss="mse", jit_compile=True)

    def compiled_later() -> None:
        model = worker.dense()
        model.compile(hooks.DistributedOptimizer(SGD(0.1)), loss="mse")
        model.jit_compile = True
        model.fit(*share, verbose=0)

    def left_to_keras() -> bool:
        """As on a machine with a GPU."""
        model = worker.dense()
        model._resolve_auto_jit_compile = lambda: True
        model.compile(hooks.DistributedOptimizer(SGD(0.1)), loss="mse")
        return bool(model.jit_compile)

    def sparse() -> None:
        model = Words()
        model.build((None, 5))
        model.compile(hooks.DistributedOptimizer(SGD(0.1), backward_passes_per_step=2), loss="mse")
        model.fit(*_words(comm.rank), verbose=0)

    twice = hooks.DistributedOptimizer(SGD(0.1))
    return {
        "jit": worker.raised(compiled),
        "jit later": worker.raised(compiled_later),
        "jit left to Keras": left_to_keras(),
        "twice": worker.raised(lambda: hooks.DistributedOptimizer(twice)),
        "passes": worker.raised(lambda: hooks.DistributedOptimizer(SGD(0.1), backward_passes_per_step=0)),
        "op": worker.raised(lambda: hooks.DistributedOptimizer(SGD(0.1), op="median")),
        "kind": worker.raised(lambda: hooks.DistributedOptimizer(object())),
        "comm": worker.raised(
            lambda: hooks.DistributedOptimizer(SGD(0.1), comm="world")  # type: ignore[arg-type]
        ),
        "missing": worker.raised(
            lambda: hooks.DistributedOptimizer(SGD(0.1), missing="ignore")  # type: ignore[arg-type]
        ),
        "sparse passes": worker.raised(sparse),
        "unbuilt": worker.raised(lambda: hooks.broadcast_global_variables(keras.Sequential([keras.layers.Dense(1)]))),
        "root": worker.raised(lambda: hooks.broadcast_global_variables(worker.dense(), 2)),
        "momentum": worker.raised(lambda: hooks.LearningRateWarmupCallback(0.1, momentum_correction=True)),
        "every": worker.raised(lambda: hooks.ModelAveragingCallback(0)),
        "by name": type(hooks.DistributedOptimizer("adam")).__name__,
        "plain models": worker.raised(lambda: alone(comm, "Adam", 0.01, 1)),
    }


# --- ranks that differ


def uneven(comm: Comm) -> Any:
    """Rank 1 has fewer batches, and says so."""
    optimizer = hooks.DistributedOptimizer(SGD(0.1))
    model = worker.dense(seed=1)
    model.compile(optimizer, loss="mse")
    known = worker.raised(lambda: model.fit(*worker.samples(comm.rank, 4 - comm.rank), batch_size=8, verbose=0))
    share = worker.samples(comm.rank, 1)
    epochs = worker.raised(lambda: model.fit(*share, batch_size=8, verbose=0, epochs=1 + comm.rank))

    return known, epochs, worker.calls(model)


def stopping_apart(comm: Comm) -> Any:
    """Rank 1 stops by itself: its metrics are its own."""
    found = []
    for averaged in (False, True):
        model = worker.dense(seed=1)
        model.compile(hooks.DistributedOptimizer(SGD(0.0)), loss="mse")
        stop = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", logs["loss"] > 0.8)  # noqa: B023
        )
        share = np.zeros((8, 6), np.float32), np.full((8, 3), [1.2, 0.6][comm.rank], np.float32)  # losses 1.44, 0.36
        callbacks = [*([hooks.MetricAverageCallback()] if averaged else []), stop]
        model.set_weights([np.zeros_like(w) for w in model.get_weights()])
        results = worker.raised(lambda: model.fit(*share, batch_size=8, epochs=3, verbose=0, callbacks=callbacks))  # noqa: B023
        found.append([results, worker.calls(model)])
    return found


def models_differ(comm: Comm) -> Any:
    model = worker.dense(width=8 + comm.rank)
    model.compile(hooks.DistributedOptimizer(SGD(0.1)), loss="mse")
    before = worker.state(model)[0]
    results = worker.raised(lambda: model.fit(*worker.samples(comm.rank, 1), verbose=0, callbacks=[start()]))
    gradients = worker.raised(lambda: model.fit(*worker.samples(comm.rank, 1), verbose=0))
    return results, gradients, worker.state(model)[0] == before


SCENARIOS = (
    steps_per_execution,
    run_eagerly,
    train_on_batch,
    custom_loop,
    unknown_length,
    embedding,
    embedding_passes,
    missing_on_one_rank,
    mixed_precision,
    wrong_nesting,
    saved_and_loaded,
    trained_before_distributed,
    never_used,
    own_optimizer,
    refused,
    uneven,
    stopping_apart,
    models_differ,
)

if __name__ == "__main__":
    with collectives.init(timeout=60.0) as group:
        worker.run(group, [s for s in SCENARIOS if s.__name__ in sys.argv[2:] or not sys.argv[2:]])
