"""A process of two, each with one inter-op thread: no overlap, which is told, and no deadlock either."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf

import collectives.tensorflow as ct
from collectives import Communicator
from tests.collectives.tensorflow.checks import main


def check_one_inter_op_thread(comm: Communicator) -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    first = ct.GradientExchange(comm, bucket_bytes=64)
    second = ct.GradientExchange(comm, bucket_bytes=64, op="sum")
    weights = [tf.Variable(tf.fill([4, 4], 0.1 * (i + 1))) for i in range(6)]

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
        gradients = tape.gradient(y, weights)
        sums, means = second(gradients, weights), first(gradients, weights)
        return [a - 2.0 * b for a, b in zip(sums, means, strict=True)]

    with pytest.warns(RuntimeWarning, match="one inter-op thread") as caught:
        step(tf.ones([2, 4]) * (comm.rank + 1.0))
    assert len(caught) == 2  # one from each
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        for _ in range(20):
            for difference in step(tf.random.normal([2, 4])):
                np.testing.assert_array_equal(difference, np.zeros([4, 4]))
        ct.GradientExchange(comm)([weight + 0.0 for weight in weights])  # one bucket: nothing to overlap
    assert first.calls == second.calls == 21


if __name__ == "__main__":
    main(globals())
