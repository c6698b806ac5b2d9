"""Trains a Keras model on scikit-learn's handwritten digits by local SGD: replicas whose weights are averaged.

    collectives run -n 2 examples/local_sgd_digits.py --every 10
    collectives run -n 2 examples/local_sgd_digits.py --every 1     # synchronous SGD

Rank 0 reads the samples and scatters them. Each rank trains a replica of the model with its own samples and a plain
optimizer. After every k steps, weights and biases are replaced by their means over all ranks. With a larger k there are
fewer averages, each of the same size, and the replicas differ more in between. The script checks that all ranks end
with the same weights.
"""

from __future__ import annotations

import argparse
import sys

import keras
import numpy as np

import collectives
import collectives.keras as hooks

BATCH, EPOCHS, WANTED = 16, 12, 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description="local SGD on handwritten digits")
    parser.add_argument("--every", type=int, default=10, metavar="K", help="steps from one average to the next")
    every = parser.parse_args().every

    with collectives.init() as comm:
        x, y, test = None, None, None
        if comm.rank == 0:
            from sklearn.datasets import load_digits

            pixels, digits = load_digits(return_X_y=True)
            order = np.random.default_rng(1).permutation(len(digits))  # the samples are sorted by writer
            scaled, answers = (pixels[order] / 16).astype(np.float32), digits[order].astype(np.int64)
            split = len(scaled) * 4 // 5
            x, y, test = scaled[:split], answers[:split], (scaled[split:], answers[split:])
        mine, mine_answers = hooks.scatter_data(x, y)

        keras.utils.set_random_seed(1 + comm.rank)  # ranks begin differently, so that the broadcast has work to do
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(64, activation="tanh"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="sparse_categorical_crossentropy")
        averaging = hooks.ModelAveragingCallback(every)
        start = hooks.BroadcastGlobalVariablesCallback(0)
        model.fit(mine, mine_answers, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[start, averaging])

        weights = np.concatenate([w.reshape(-1) for w in model.get_weights()])
        if not all(np.array_equal(weights, theirs) for theirs in comm.allgather(weights)):
            sys.exit("FAILED: the ranks' weights differ")
        if test is not None:
            accuracy = float((model.predict(test[0], verbose=0).argmax(axis=1) == test[1]).mean())
            steps = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
            print(f"{steps} steps on each of {comm.size} ranks, {averaging.averages} averages")
            print(f"weights: the same bits on {comm.size} ranks")
            print(f"digits never seen before: {accuracy:.1%} recognised")
            if not accuracy >= WANTED:  # written so that NaN fails, too
                sys.exit(f"FAILED: the accuracy must be {WANTED:.0%}")


if __name__ == "__main__":
    main()
