"""One of two ranks that train; rank 1 is killed in the middle of its fifth step."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import tensorflow as tf

import collectives
import collectives.tensorflow as ct


def main() -> None:
    with collectives.init(timeout=60.0) as comm:
        exchange = ct.GradientExchange(comm, bucket_bytes=64, name="net")
        weight = tf.Variable(tf.ones([40]))

        def dies(step: Any) -> Any:
            if comm.rank == 1 and int(step) == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return step

        @tf.function
        def steps() -> None:
            for i in tf.range(1000):
                first = tf.fill([40], tf.cast(i, tf.float32))
                # The second bucket waits until rank 1 has decided to live.
                second = tf.cast(tf.ensure_shape(tf.numpy_function(dies, [i], tf.int32), []), tf.float32) * tf.ones(
                    [40]
                )
                weight.assign_add(exchange([second, first])[0])

        began = time.monotonic()
        try:
            with ct.typed_errors():
                steps()
        except collectives.PeerLost as error:
            took = time.monotonic() - began
            print(f"lost {error.ranks} after {exchange.calls} steps in {'time' if took < 30 else took}: {error}")
            print(f"from {type(error.__cause__).__name__}, kept: {str(error) == str(exchange.error)}")
            try:
                ct.allreduce(weight, comm=comm)
            except collectives.PeerLost as again:
                print(f"again {again.ranks}")
            sys.exit(0)
        sys.exit("nothing was raised")


if __name__ == "__main__":
    main()
