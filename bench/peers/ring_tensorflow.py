"""Measures TensorFlow's own ring allreduce over gRPC on a list of gradients, with the installed TensorFlow.

Invariant: the compiled function and its tensors are those of `hook_tensorflow`, with `tf.raw_ops.CollectiveReduceV2`
instead of our hook. There is one operation for each tensor, and these operations may run concurrently, or there is one
operation for all tensors joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectives.bench.cases import Case
from collectives.bench.peers import here, tensorflow
from collectives.bench.peers.here import commands
from collectives.bench.peers.hook_tensorflow import BARE, ENVIRONMENT, REQUIREMENTS, GradientAllreduce

__all__ = ["BARE", "ENVIRONMENT", "REQUIREMENTS", "commands", "connect", "environment"]

_PATIENCE = 120.0  # seconds


def environment(folder: str) -> dict[str, str]:
    return {**here.environment(), **tensorflow.environment(folder)}


def connect(folder: str, ranks: int, rank: int | None) -> Member:
    assert rank is not None
    here.packages()
    return Member(tensorflow.join(folder, ranks, rank), ranks, rank)


class Member(tensorflow.Member):
    def task(self, case: Case) -> GradientAllreduce:
        ways = {"each": self._each, "fused": self._fused}
        return GradientAllreduce(self._tf, case, self.rank, ways[case.algorithm], self._device)

    def _each(self, tensors: Sequence[Any]) -> list[Any]:
        return [self._reduced(tensor) for tensor in tensors]

    def _fused(self, tensors: Sequence[Any]) -> list[Any]:
        tf = self._tf
        flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
        parts = tf.split(self._reduced(tf.concat(flat, 0)), [part.shape[0] for part in flat])
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def _reduced(self, tensor: Any) -> Any:
        tf = self._tf
        self._instance += 1
        return tf.raw_ops.CollectiveReduceV2(
            input=tensor,
            group_size=tf.constant(self._ranks),
            group_key=tf.constant(1),
            instance_key=tf.constant(self._instance),
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
            timeout_seconds=_PATIENCE,
        )
