"""One rank's part of `overlap`: timed training steps in TensorFlow, and the times of each bucket of gradients.

Invariant: a step ends when all exchanged gradients are available. In every mode that exchanges gradients, all elements
are compared with sums that are computed without the gradient hook.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import tensorflow as tf

import collectives
from collectives.bench.overlap import WAYS, Bucket, Setting, Step
from collectives.tensorflow import GradientExchange

_UNBOUNDED: Final = 1 << 50
_TIMEOUT: Final = 120.0


class Network:
    """A neural network of dense layers, with the training samples of this rank."""

    def __init__(self, setting: Setting, rank: int) -> None:
        random, mine = np.random.default_rng(1), np.random.default_rng([2, rank])
        shape, scale = (setting.width, setting.width), setting.width**-0.5
        self.weights = [tf.Variable(random.normal(0, scale, shape), dtype=tf.float32) for _ in range(setting.layers)]
        self.samples = tf.constant(mine.normal(0, 1, (setting.batch, setting.width)), tf.float32)

    def stepping(self, exchange: GradientExchange | None) -> Any:
        """Return a compiled TensorFlow function that runs one training step.

        The function returns the time at which backpropagation ended, and the gradients. `exchange` is the gradient hook
        that sums the gradients over all ranks; with None, they stay local.
        """

        @tf.function(autograph=False)
        def step(samples: Any) -> Any:
            with tf.GradientTape() as tape:
                y = samples
                for weight in self.weights:
                    y = tf.nn.relu(y @ weight)
                loss = tf.reduce_sum(y * y)
            gradients = tape.gradient(loss, self.weights)
            # If this function were stateful, TensorFlow would run it in order with the operations of the exchange.
            ended = tf.numpy_function(_now, [gradient[:1] for gradient in gradients], tf.float64, stateful=False)
            return ended, gradients if exchange is None else exchange(gradients, self.weights)

        return step


def _now(*_: Any) -> Any:
    return np.float64(time.monotonic())


def run(setting: Setting) -> list[Step]:
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    with collectives.init(timeout=_TIMEOUT) as comm:
        network = Network(setting, comm.rank)
        exchanges = {
            "none": None,
            "fused": GradientExchange(comm, op="sum", bucket_bytes=_UNBOUNDED, name="fused", record=True),
            "bucketed": GradientExchange(comm, op="sum", bucket_bytes=setting.bucket, name="bucketed", record=True),
        }
        steps = {way: network.stepping(exchanges[way]) for way in WAYS}
        _check(comm, {way: [g.numpy() for g in step(network.samples)[1]] for way, step in steps.items()})
        found = []
        for _ in range(setting.steps):
            for way, step in steps.items():
                exchange = exchanges[way]
                if exchange is not None:
                    exchange.timeline.clear()
                comm.barrier()
                began = time.monotonic()
                ended, gradients = step(network.samples)
                ready = [memoryview(gradient) for gradient in gradients]
                seconds = time.monotonic() - began
                del ready, gradients
                spans = exchange.timeline if exchange is not None else ()
                buckets = tuple(Bucket(s.bucket, s.started - began, s.finished - began) for s in spans)
                found.append(Step(way, seconds, float(ended) - began, buckets))
        return found


def _check(comm: collectives.Communicator, gradients: dict[str, list[Any]]) -> None:
    """End the process if exchanged gradients are wrong. A sum of two addends has the same bits in every mode."""
    wanted = [comm.allreduce(gradient) for gradient in gradients["none"]]
    for way in ("fused", "bucketed"):
        wrong = sum(int((got != right).sum()) for got, right in zip(gradients[way], wanted, strict=True))
        if wrong or not all(np.isfinite(right).all() for right in wanted):
            raise SystemExit(f"{wrong} elements of gradients are wrong, {way}, on rank {comm.rank}")


def main() -> None:
    """The main function of one rank's process: measure training steps.

    It reads the settings as JSON from the first command-line argument, and prints the times of the steps as JSON.
    """
    print(json.dumps([asdict(step) for step in run(Setting(**json.loads(sys.argv[1])))]))


if __name__ == "__main__":
    main()
