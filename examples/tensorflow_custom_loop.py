"""Trains a network on scikit-learn's handwritten digits in a TensorFlow loop, with as many processes as you like.

    collectives run -n 2 examples/tensorflow_custom_loop.py
    python examples/tensorflow_custom_loop.py                     # a single process

Three lines make the loop distributed: all ranks begin with the variables of rank 0, each rank takes its part of every
batch, and the tape returns the gradients of all parts together. Then one process trains the same network with the whole
batches, and the script checks that the variables are the same.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import collectives

try:
    import tensorflow as tf
    from sklearn.datasets import load_digits
except ImportError as error:
    sys.exit(f"This example needs TensorFlow and scikit-learn: pip install tensorflow scikit-learn ({error})")

import collectives.tensorflow as ct

HIDDEN, CLASSES = 48, 10
BATCH, EPOCHS = 128, 12  # samples in a batch, over all ranks
RATE, MOMENTUM = 0.1, 0.9
SEED = 1
TOLERANCE, WANTED = 1e-5, 0.94


class Network(tf.Module):
    """Two layers, and momentum for each of their variables."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        shapes = ([64, HIDDEN], [HIDDEN], [HIDDEN, CLASSES], [CLASSES])
        names = ("hidden/kernel", "hidden/bias", "output/kernel", "output/bias")
        values = [random.normal(0, 64**-0.5, shape) for shape in shapes]
        self.weights = [tf.Variable(v, dtype=tf.float32, name=n) for v, n in zip(values, names, strict=True)]
        self.speeds = [tf.Variable(tf.zeros(shape)) for shape in shapes]

    def __call__(self, pixels: Any) -> Any:
        first, bias, second, bias2 = self.weights
        return tf.tanh(pixels @ first + bias) @ second + bias2

    def move(self, gradients: list[Any]) -> None:
        for weight, speed, gradient in zip(self.weights, self.speeds, gradients, strict=True):
            speed.assign(MOMENTUM * speed + gradient)
            weight.assign_sub(RATE * speed)


def load() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Samples for training, in whole batches, and samples for testing."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(digits))
    pixels, digits = (pixels[order] / 16).astype(np.float32), digits[order]
    split = len(digits) * 4 // 5 // BATCH * BATCH
    return (pixels[:split], digits[:split]), (pixels[split:], digits[split:])


def train(network: Network, samples: tuple[Any, Any], rank: int, size: int, tape: Any, show: bool) -> None:
    """Train with this rank's part of every batch; `tape` makes the tape that a step uses."""

    @tf.function
    def step(pixels: Any, digits: Any) -> Any:
        with tape() as recording:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=digits, logits=network(pixels))
            loss = tf.reduce_mean(losses)
        network.move(recording.gradient(loss, network.weights))
        return loss

    pixels, digits = samples
    part = BATCH // size
    for epoch in range(1, EPOCHS + 1):
        order = np.random.default_rng(epoch).permutation(len(digits))  # the same on every rank
        losses = []
        for start in range(rank * part, len(digits), BATCH):
            mine = order[start : start + part]
            losses.append(float(step(pixels[mine], digits[mine])))
        if show and (epoch == 1 or epoch % 4 == 0):
            print(f"epoch {epoch:3}  loss {np.mean(losses):.4f}", flush=True)


def main() -> None:
    with collectives.init() as comm:
        if BATCH % comm.size:
            sys.exit(f"{BATCH} samples cannot be divided among {comm.size} ranks")
        samples, test = load()
        network = Network(seed=SEED + comm.rank)  # different on every rank, until the broadcast from rank 0
        ct.broadcast_variables(network.weights, root_rank=0)
        with ct.typed_errors():
            train(network, samples, comm.rank, comm.size, ct.DistributedGradientTape, show=comm.rank == 0)

        everyones = ct.allgather_object(b"".join(weight.numpy().tobytes() for weight in network.weights))
        if len(set(everyones)) != 1:
            sys.exit("FAILED: the ranks' weights differ")
        if comm.rank != 0:
            return
        alone = Network(SEED)
        train(alone, samples, 0, 1, tf.GradientTape, show=False)
        pairs = zip(network.weights, alone.weights, strict=True)
        difference = max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in pairs)
        accuracy = float((network(test[0]).numpy().argmax(axis=1) == test[1]).mean())
        print(f"weights: the same bits on {comm.size} ranks; {difference:.1e} from those of one process alone")
        print(f"digits never seen before: {accuracy:.1%} recognised")
        if not difference <= TOLERANCE or not accuracy >= WANTED:  # written so that NaN fails, too
            sys.exit(f"FAILED: the difference may be {TOLERANCE:g} at most, the accuracy must be {WANTED:.0%}")


if __name__ == "__main__":
    main()
