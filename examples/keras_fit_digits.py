"""Trains a Keras model on scikit-learn's handwritten digits by `fit`, with as many processes as you like.

    collectives run -n 2 examples/keras_fit_digits.py
    python examples/keras_fit_digits.py               # a single process

The script is one for a single process with five more lines, which are numbered. Each rank trains with its share of the
samples, and every step uses the mean of all ranks' gradients. So all ranks keep the same weights; the script checks
this.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import collectives
import collectives.keras as hooks

BATCH, EPOCHS, WANTED = 16, 12, 0.95


def main() -> None:
    with collectives.init() as comm:  # 1
        pixels, digits = load_digits(return_X_y=True)
        order = np.random.default_rng(1).permutation(len(digits))  # the samples are sorted by writer
        x, y = (pixels[order] / 16).astype(np.float32), digits[order].astype(np.int64)
        split = len(x) * 4 // 5
        mine, answers = hooks.scatter_data(x[:split], y[:split])  # 2: distribute the samples of rank 0 evenly

        keras.utils.set_random_seed(1 + comm.rank)  # ranks begin differently, so that the broadcast has work to do
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(64, activation="tanh"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        # With more ranks a step uses more samples, so the learning rate can be larger.
        rate = 2e-3 * comm.size
        optimizer = hooks.DistributedOptimizer(keras.optimizers.Adam(rate))  # 3
        model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(
            mine,
            answers,
            batch_size=BATCH,
            epochs=EPOCHS,
            verbose=2 if comm.rank == 0 else 0,
            callbacks=[
                hooks.BroadcastGlobalVariablesCallback(0),  # 4: all begin with rank 0's weights
                hooks.MetricAverageCallback(),  # 5: metrics that are shown and used are means over all ranks
                hooks.LearningRateWarmupCallback(rate, warmup_epochs=2),
            ],
        )

        weights = np.concatenate([w.reshape(-1) for w in model.get_weights()])
        if not all(np.array_equal(weights, theirs) for theirs in comm.allgather(weights)):
            sys.exit("FAILED: the ranks' weights differ")
        if comm.rank == 0:
            accuracy = model.evaluate(x[split:], y[split:], verbose=0)[1]
            print(f"loss {history.history['loss'][0]:.3f} -> {history.history['loss'][-1]:.3f}")
            print(f"weights: the same bits on {comm.size} ranks")
            print(f"digits never seen before: {accuracy:.1%} recognised")
            if not accuracy >= WANTED:  # written so that NaN fails, too
                sys.exit(f"FAILED: the accuracy must be {WANTED:.0%}")


if __name__ == "__main__":
    main()
