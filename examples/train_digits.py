"""Trains a small network on scikit-learn's handwritten digits, with as many processes as you like.

    collectives run -n 4 examples/train_digits.py
    python examples/train_digits.py                   # a single process

Every rank holds a share of the samples and a copy of the weights. A step takes one batch, whose samples are spread
over all ranks: each rank computes the gradient of its own part, allreduce adds the gradients, and all ranks change
their weights in the same way. The samples of a batch do not depend on the number of ranks, so the result does not
either. The script checks this at the end.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

import collectives

HIDDEN, CLASSES = 48, 10
BATCHES, EPOCHS = 20, 30  # batches an epoch
RATE, MOMENTUM = 0.05, 0.9
SEED = 1
TOLERANCE, WANTED = 1e-5, 0.95

Array = npt.NDArray[np.float64]
Samples = tuple[npt.NDArray[np.int64], Array, npt.NDArray[np.int64]]  # numbers, pixels, digits


def load() -> tuple[Samples, Samples]:
    """All samples for training, in random order, and samples for testing."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(digits))
    pixels, digits = pixels[order] / 16, digits[order].astype(np.int64)
    split = len(digits) * 4 // 5
    return (
        (np.arange(split), pixels[:split], digits[:split]),
        (np.arange(split, len(digits)), pixels[split:], digits[split:]),
    )


def initial_weights() -> Array:
    """Weights and biases of both layers in one array, so that one allreduce is enough for all gradients."""
    random = np.random.default_rng(SEED)
    weights = np.zeros(64 * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
    first, _, second, _ = layers(weights)
    first[:] = random.normal(0, 64**-0.5, first.shape)
    second[:] = random.normal(0, HIDDEN**-0.5, second.shape)
    return weights


def layers(weights: Array) -> tuple[Array, Array, Array, Array]:
    """Weights and biases of each layer: views of the parts of that one array, in their shapes."""
    ends = np.cumsum([64 * HIDDEN, HIDDEN, HIDDEN * CLASSES])
    first, bias, second, bias2 = np.split(weights, ends)
    return first.reshape(64, HIDDEN), bias, second.reshape(HIDDEN, CLASSES), bias2


def forward(weights: Array, pixels: Array) -> tuple[Array, Array]:
    """The values of the hidden layer, and the probability of each digit."""
    first, bias, second, bias2 = layers(weights)
    hidden = np.tanh(pixels @ first + bias)
    scores = hidden @ second + bias2
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def add_gradient(sums: Array, weights: Array, pixels: Array, digits: npt.NDArray[np.int64]) -> None:
    """Write sums over these samples to `sums`: gradient, loss, number of right answers, number of samples."""
    hidden, probabilities = forward(weights, pixels)
    error = probabilities - np.eye(CLASSES)[digits]
    back = error @ layers(weights)[2].T * (1 - hidden**2)
    first, bias, second, bias2 = layers(sums[:-3])
    first[:], bias[:] = pixels.T @ back, back.sum(axis=0)
    second[:], bias2[:] = hidden.T @ error, error.sum(axis=0)
    loss = -np.log(probabilities[np.arange(len(digits)), digits]).sum()
    sums[-3:] = loss, (probabilities.argmax(axis=1) == digits).sum(), len(digits)


def train(samples: Samples, weights: Array, sums: Array, add_up: Callable[[Array], object], show: bool) -> None:
    """Change `weights` by training; `add_up` replaces this rank's sums by the sums over all ranks, in place."""
    numbers, pixels, digits = samples
    random = np.random.default_rng(SEED)  # the same on every rank, so that all take the batches in the same order
    momentum = np.zeros_like(weights)
    for epoch in range(1, EPOCHS + 1):
        began, communicating, seen = time.perf_counter(), 0.0, np.zeros(3)
        for batch in random.permutation(BATCHES):
            mine = numbers % BATCHES == batch  # this rank's part of the batch
            add_gradient(sums, weights, pixels[mine], digits[mine])
            start = time.perf_counter()
            add_up(sums)
            communicating += time.perf_counter() - start
            # Parts differ in size, so the sum of all gradients is divided by the size of the whole batch.
            momentum = MOMENTUM * momentum + sums[:-3] / sums[-1]
            weights -= RATE * momentum
            seen += sums[-3:]
        if show and (epoch == 1 or epoch % 5 == 0):
            loss, right, count = seen
            spent = f"{communicating * 1e3:5.1f} of {(time.perf_counter() - began) * 1e3:5.1f} ms in allreduce"
            print(f"epoch {epoch:3}  loss {loss / count:.4f}  accuracy {right / count:.3f}  {spent}")


def main() -> None:
    with collectives.init() as comm:
        if importlib.util.find_spec("sklearn") is None:
            sys.exit("This example needs scikit-learn's data: pip install scikit-learn" if comm.rank == 0 else 1)
        everything, test = load() if comm.rank == 0 else (None, None)

        # Rank 0 has the samples and the weights; every rank gets a share of the samples and a copy of the weights.
        numbers, pixels, digits = everything or (None, None, None)
        counts = None if numbers is None else [len(part) for part in np.array_split(numbers, comm.size)]
        mine = (comm.scatterv(numbers, counts), comm.scatterv(pixels, counts), comm.scatterv(digits, counts))
        weights = comm.broadcast(initial_weights() if comm.rank == 0 else np.empty_like(initial_weights()))
        print(f"rank {comm.rank} of {comm.size} trains with {len(mine[0])} samples", flush=True)

        sums = comm.empty(len(weights) + 3, "float64")  # ranks on this machine read it without a copy
        train(mine, weights, sums, lambda x: comm.allreduce(x, out=x), show=comm.rank == 0)

        digest = np.frombuffer(hashlib.sha256(weights.tobytes()).digest(), np.uint8)
        if len({row.tobytes() for row in comm.allgather(digest)}) != 1:
            sys.exit("FAILED: the ranks' weights differ")
        if everything is None or test is None:
            return

        alone = initial_weights()
        train(everything, alone, np.empty_like(sums), lambda x: x, show=False)
        difference = float(np.abs(weights - alone).max())
        accuracy = float((forward(weights, test[1])[1].argmax(axis=1) == test[2]).mean())
        print(f"weights: the same bits on {comm.size} ranks; {difference:.1e} from those of one process alone")
        print(f"digits never seen before: {accuracy:.1%} recognised")
        if not difference <= TOLERANCE or not accuracy >= WANTED:  # written so that NaN fails, too
            sys.exit(f"FAILED: the difference may be {TOLERANCE:g} at most, the accuracy must be {WANTED:.0%}")


if __name__ == "__main__":
    main()
