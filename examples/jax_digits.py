"""Trains a small network on scikit-learn's handwritten digits with JAX, with as many processes as you like.

    collectives run -n 2 examples/jax_digits.py
    python examples/jax_digits.py                     # a single process

Every rank starts with the parameters of rank 0 and takes its part of each batch. An epoch is one compiled function, a
scan over batches, which contains the allreduce of the gradients. The script checks that the parameters of all ranks are
bitwise equal at the end, and that they are those with which a single process would end, up to rounding.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax import numpy as jnp

import collectives
import collectives.jax as cj

HIDDEN, CLASSES = 48, 10
BATCH, EPOCHS = 72, 15
RATE, MOMENTUM = 0.05, 0.9
SEED = 1
TOLERANCE, WANTED = 1e-5, 0.95

Pixels = npt.NDArray[np.float64]
Digits = npt.NDArray[np.int64]
Tree = dict[str, Any]


def load() -> tuple[Pixels, Digits, Pixels, Digits]:
    """Samples for training, then samples for testing, in a random order that is the same on every rank."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(digits))
    pixels, digits = pixels[order] / 16, digits[order].astype(np.int64)
    split = len(digits) * 4 // 5
    return pixels[:split], digits[:split], pixels[split:], digits[split:]


def initial_parameters(seed: int) -> Tree:
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": {"kernel": jax.random.normal(first, (64, HIDDEN)) / 8, "bias": jnp.zeros(HIDDEN)},
        "output": {"kernel": jax.random.normal(second, (HIDDEN, CLASSES)) / HIDDEN**0.5, "bias": jnp.zeros(CLASSES)},
    }


def scores(parameters: Tree, pixels: Any) -> Any:
    hidden = jnp.tanh(pixels @ parameters["hidden"]["kernel"] + parameters["hidden"]["bias"])
    return hidden @ parameters["output"]["kernel"] + parameters["output"]["bias"]


def loss(parameters: Tree, pixels: Any, digits: Any) -> Any:
    """The sum of the losses of these samples, not the mean, because the ranks' parts of a batch may differ in size."""
    found = jax.nn.log_softmax(scores(parameters, pixels))
    return -jnp.take_along_axis(found, digits[:, None], axis=1).sum()


@functools.partial(jax.jit, static_argnames="together")
def epoch(parameters: Tree, momentum: Tree, batches: tuple[Any, Any], together: bool) -> tuple[Tree, Tree, Any]:
    """Train with each batch in turn. Returns the parameters, the momentum, and the mean loss of these samples."""

    def step(state: tuple[Tree, Tree], batch: tuple[Any, Any]) -> tuple[tuple[Tree, Tree], Any]:
        parameters, momentum = state
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        if together:
            gradients = cj.allreduce_gradients(gradients, op="sum")
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g / BATCH, momentum, gradients)
        return (jax.tree.map(lambda p, m: p - RATE * m, parameters, momentum), momentum), value / len(batch[1])

    (parameters, momentum), losses = jax.lax.scan(step, (parameters, momentum), batches)
    return parameters, momentum, losses.mean()


def train(parameters: Tree, pixels: Pixels, digits: Digits, rank: int = 0, size: int = 1) -> Tree:
    """Train with this rank's part of every batch. With size=1 it does not communicate."""
    random = np.random.default_rng(SEED)  # the same on every rank, so that all take the batches in the same order
    momentum = jax.tree.map(jnp.zeros_like, parameters)
    for number in range(1, EPOCHS + 1):
        order = random.permutation(len(digits))[: len(digits) // BATCH * BATCH].reshape(-1, BATCH)
        mine = order[:, rank::size]
        parameters, momentum, mean = epoch(parameters, momentum, (pixels[mine], digits[mine]), size > 1)
        if size > 1 and (number == 1 or number % 5 == 0):
            found = cj.average_metrics({"loss": mean}, weight=mine.shape[1])
            if rank == 0:
                print(f"epoch {number:3}  loss {found['loss']:.4f}")
    return parameters


def main() -> None:
    if importlib.util.find_spec("sklearn") is None:
        sys.exit("This example needs scikit-learn's data: pip install scikit-learn")
    jax.config.update("jax_enable_x64", True)
    with collectives.init() as comm, cj.typed_errors():
        pixels, digits, unseen, answers = load()
        print(f"rank {comm.rank} of {comm.size}; compiled functions reach the library by {cj.how()}", flush=True)

        # Ranks begin with different parameters, which the broadcast replaces by those of rank 0.
        start = cj.broadcast_parameters(initial_parameters(seed=comm.rank), root_rank=0)
        parameters = train(start, pixels, digits, comm.rank, comm.size)

        everything = b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(parameters))
        digest = np.frombuffer(hashlib.sha256(everything).digest(), np.uint8)
        if len({row.tobytes() for row in comm.allgather(digest)}) != 1:
            sys.exit("FAILED: the ranks' parameters differ")
        if comm.rank != 0:
            return

        alone = train(initial_parameters(seed=0), pixels, digits)
        apart = jax.tree.map(lambda x, y: float(abs(x - y).max()), parameters, alone)
        difference = max(jax.tree.leaves(apart))
        accuracy = float((scores(parameters, unseen).argmax(axis=1) == answers).mean())
        print(f"parameters: the same bits on {comm.size} ranks; {difference:.1e} from those of one process alone")
        print(f"digits never seen before: {accuracy:.1%} recognised")
        if not difference <= TOLERANCE or not accuracy >= WANTED:  # written so that NaN fails, too
            sys.exit(f"FAILED: the difference may be {TOLERANCE:g} at most, the accuracy must be {WANTED:.0%}")


if __name__ == "__main__":
    main()
