"""A gradient tape whose gradients are reduced over all ranks.

Invariant: all methods but `gradient` are those of the wrapped tape.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

import tensorflow as tf

from collectives.core.communicator import Communicator
from collectives.tensorflow.exchange import GradientExchange


class DistributedGradientTape:
    """A tf.GradientTape whose method `gradient` returns gradients that are reduced over all ranks.

    Use `with DistributedGradientTape() as tape:`, or pass a tf.GradientTape that has recorded already. `options` are
    those of `GradientExchange`. Instead of `comm` and `options`, an `exchange` may be given. `error_feedback` needs an
    exchange that is used in several steps, because the exchange keeps the rounding errors. If `gradtape` is None, a
    tf.GradientTape is made with `persistent` and `watch_accessed_variables`.
    """

    def __init__(
        self,
        gradtape: Any = None,
        comm: Communicator | None = None,
        *,
        exchange: GradientExchange | None = None,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
        **options: Any,
    ) -> None:
        if exchange is not None and (options or comm is not None):
            raise ValueError("give either an exchange, or comm and options to make one with")
        if options.get("error_feedback"):
            raise ValueError(
                "error_feedback is kept from step to step, but a tape is made for each: "
                "make one GradientExchange(error_feedback=True, ...) and give it as exchange="
            )
        self._tape: Final = (
            tf.GradientTape(persistent=persistent, watch_accessed_variables=watch_accessed_variables)
            if gradtape is None
            else gradtape
        )
        self._exchange: Final = GradientExchange(comm, **options) if exchange is None else exchange

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tape.__exit__(kind, value, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Returns the gradients of `target` with respect to `sources`, reduced over all ranks.

        The result has the structure of `sources`. The arguments are those of tf.GradientTape.gradient. The errors are
        those of `GradientExchange`.
        """
        flat = tf.nest.flatten(sources)
        gradients = self._tape.gradient(target, flat, output_gradients, unconnected_gradients)
        exchanged = self._exchange(gradients, flat)
        return tf.nest.pack_sequence_as(sources, exchanged)


@tf.autograph.experimental.do_not_convert
def allreduce_gradients(
    gradients: Sequence[Any], variables: Sequence[Any] | None = None, comm: Communicator | None = None, **options: Any
) -> list[Any]:
    """Reduces gradients (tensors, tf.IndexedSlices or None) over all ranks; returns them as a list.

    `variables`: the variable of each gradient, if known. `options`: arguments of `GradientExchange`.
    """
    return GradientExchange(comm, **options)(gradients, variables)
