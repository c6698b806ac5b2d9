"""Combines the gradients of all ranks in custom training loops, by gradient tapes or Keras's optimizers.

Invariant: every argument of Horovod's is respected, refused, or reported by a warning.
"""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

import collectives.tensorflow as hooks
from collectives.horovod.compression import NoneCompressor, is_custom, wire
from collectives.horovod.exchange import HorovodExchange, LocalVariables
from collectives.horovod.options import check_devices, check_groups, hint, predivided
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.horovod.reductions import Average, training_op
from collectives.horovod.tensorflow.compression import Compression


class _Tape(hooks.DistributedGradientTape):
    """A gradient tape that combines the gradients of all ranks, except those of sources registered as local."""

    def __init__(self, gradtape: Any, exchange: HorovodExchange, local: LocalVariables) -> None:
        super().__init__(gradtape, exchange=exchange)  # type: ignore[arg-type]
        self.local: Final = local

    def register_local_source(self, source: Any) -> None:
        """Do not exchange the gradient of this variable."""
        self.local.add(source)

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Returns the gradients of `target` with respect to `sources`, reduced over all ranks.

        The arguments are those of tf.GradientTape.gradient; `use_generic_names` has no effect.
        """
        if isinstance(unconnected_gradients, bool):  # Horovod's fourth argument is use_generic_names
            unconnected_gradients = tf.UnconnectedGradients.NONE
        return super().gradient(target, sources, output_gradients, unconnected_gradients)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """Returns two lists of pairs (source, gradient): for `sources` registered as local, and for other `sources`.

        Gradients in the first list are not exchanged. Gradients in the second list are reduced over all ranks.
        """
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients), strict=True))
        local = [pair for pair in pairs if pair[0] in self.local]
        return local, [pair for pair in pairs if pair[0] not in self.local]


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a gradient tape around `gradtape`, a tf.GradientTape, that reduces gradients over all ranks.

    Its method `gradient` returns the reduced gradients. The arguments are Horovod's; docs/horovod.md lists those with
    another effect here. DesyncError on all ranks if a gradient is None on some ranks only, or if its shape or dtype
    differs between ranks.
    """
    check_devices(device_dense, device_sparse)
    check_groups(num_groups, groups)
    factors = predivided(op, gradient_predivide_factor)
    comm, local = process_set.training(), LocalVariables()
    inner = hooks.GradientExchange(
        comm,
        op=training_op(op),
        compression=wire(compression),
        sparse_as_dense=sparse_as_dense,
        prescale=factors.before,
        postscale=factors.after,
    )
    exchange = HorovodExchange(
        inner,
        local,
        size=comm.size,
        scale_local=scale_local_gradients,
        compressor=compression if is_custom(compression) else NoneCompressor,
    )
    return _Tape(gradtape, exchange, local)


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Like `DistributedGradientTape`, but gradients of the weights of `local_layers` (Keras layers) are not exchanged.

    The arguments are Horovod's; docs/horovod.md lists those with another effect here.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    tape.local.add_layers(local_layers)
    return tape


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Changes a Keras optimizer so that it reduces gradients over all ranks before each update, and returns it.

    The arguments are Horovod's; docs/horovod.md lists those with another effect here. NotImplementedError for an
    optimizer of TensorFlow 1.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise NotImplementedError(
            f"{type(optimizer).__name__} is an optimizer of TensorFlow 1: use tf.keras.optimizers, or a loop with "
            "hvd.DistributedGradientTape"
        )
    from collectives.horovod import keras

    hint(use_locking, "use_locking is of TensorFlow 1's optimizers: it is not used")
    return keras.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
