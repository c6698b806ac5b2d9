"""Measures our gradient hook for TensorFlow, which exchanges a list of gradients in a compiled function.

Invariant: the hook is called as `DistributedOptimizer` and `DistributedGradientTape` call it. Its inputs are tensors
that exist before the timed call begins; its results are tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collectives.bench.cases import Case
from collectives.bench.peers import here
from collectives.bench.peers.here import Gradients, commands
from collectives.bench.peers.tensorflow import aligned
from collectives.bench.traces import shapes

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]

ENVIRONMENT = "here"
REQUIREMENTS = ("pycollectives", "tensorflow", "tensorflow-cpu")
BARE: tuple[str, ...] = ()


def environment(folder: str) -> dict[str, str]:
    return {**here.environment(), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    here.packages()
    collectives: Any = importlib.import_module("collectives")
    tf: Any = importlib.import_module("tensorflow")
    exchange = importlib.import_module("collectives.tensorflow").GradientExchange
    comm = collectives.init(f"file://{folder}/store", rank=rank, size=ranks, name="hooks")
    return Member(tf, comm, exchange(comm, op="sum"))


class Member:
    def __init__(self, tf: Any, comm: Any, exchange: Any) -> None:
        self.rank: int = comm.rank
        self.barrier: Callable[[], None] = comm.barrier
        self._tf = tf
        self._comm = comm
        self._exchange = exchange

    def task(self, case: Case) -> GradientAllreduce:
        return GradientAllreduce(self._tf, case, self.rank, self._exchange)

    def close(self) -> None:
        self._comm.close()


class GradientAllreduce:
    """A compiled TensorFlow function that sums the gradients of a model over all ranks, ready to be timed."""

    def __init__(
        self,
        tf: Any,
        case: Case,
        rank: int,
        reduce: Callable[[Sequence[Any]], Sequence[Any]],
        device: str | None = None,
    ) -> None:
        known = shapes(case.trace)
        arrays = [aligned(int(np.prod(shape)), np.dtype(case.dtype)).reshape(shape) for shape in known]
        self._gradients = Gradients(case, rank, arrays)
        self._on: Callable[[], Any] = lambda: tf.device(device)
        with self._on():
            self._tensors = [tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in arrays]

        @tf.function(autograph=False)
        def run(tensors: Any) -> Any:
            return reduce(tensors)

        self._run = run

    def call(self) -> Any:
        with self._on():
            return self._run(self._tensors)

    def wrong(self, salt: int) -> int:
        self._gradients.fill(salt)
        return self._gradients.wrong([memoryview(tensor) for tensor in self.call()], salt)
