"""Horovod's DistributedOptimizer for Keras 3.

Invariant: every argument of Horovod's is respected, refused, or reported by a warning. If a wrapped optimizer updates
weights without an exchange of gradients, `fit` raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collectives import keras as hooks
from collectives.horovod.compression import NoneCompressor, is_custom, wire
from collectives.horovod.exchange import HorovodExchange, LocalVariables
from collectives.horovod.keras.compression import Compression
from collectives.horovod.options import check_devices, check_groups, predivided
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.horovod.reductions import Average, training_op
from collectives.keras.framework import keras
from collectives.keras.hook import hook_of


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Changes `optimizer` so that it reduces gradients over all ranks before each update, and returns the same object.

    When a model is saved, the file contains the plain optimizer, without these arguments. `gradient_predivide_factor`
    is checked, but has no effect: in Horovod it avoids overflow of averages, and here averages cannot overflow.
    Gradients of `backward_passes_per_step` passes are summed, or averaged if `average_aggregated_gradients` is True.
    The other arguments are Horovod's; docs/horovod.md lists those with another effect here.
    """
    check_devices(device_dense, device_sparse)
    check_groups(num_groups, groups)
    predivided(op, gradient_predivide_factor)
    comm = process_set.training()
    made = hooks.DistributedOptimizer(
        optimizer,
        comm,
        op=training_op(op),
        compression=wire(compression),
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        name=name or "",
    )
    hook = hook_of(made)
    assert hook is not None
    local = LocalVariables()
    # Every way of training uses the hook's exchange, on every backend.
    vars(hook)["exchange"] = HorovodExchange(
        hook.exchange,
        local,
        size=comm.size,
        scale_local=scale_local_gradients,
        compressor=compression if is_custom(compression) else NoneCompressor,
        factor=1.0 if average_aggregated_gradients else float(backward_passes_per_step),
    )
    # Avoids Keras's own __setattr__, which looks for state to track and save.
    object.__setattr__(made, "register_local_var", local.add)
    object.__setattr__(made, "register_local_layers", local.add_layers)
    return made


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Like `DistributedOptimizer`, but gradients of the weights of `local_layers` are not exchanged between ranks.

    `local_layers`: Keras layers, which must be built. The other arguments are Horovod's; docs/horovod.md lists those
    with another effect here.
    """
    made = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    made.register_local_layers(local_layers)
    return made


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[Any] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a Keras model from a file, and applies `DistributedOptimizer` to its optimizer.

    The arguments are those of Horovod's `load_model`. ValueError if the file has no optimizer, or if `legacy_opts` is
    set.
    """
    if legacy_opts:
        raise ValueError("Keras 3 has no legacy optimizers: save the model with one of keras.optimizers")
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            f"{filepath} was saved without an optimizer: load it by keras.models.load_model, and compile it"
        )
    DistributedOptimizer(model.optimizer, compression=compression)
    return model
