"""Loads models that were saved while their optimizer was distributed, to continue training.

Invariant: the optimizer has the slots with which it was saved.
"""

from __future__ import annotations

from typing import Any

from collectives.core.communicator import Communicator
from collectives.keras.framework import keras
from collectives.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any, custom_objects: dict[str, Any] | None = None, comm: Communicator | None = None, **options: Any
) -> Any:
    """`keras.models.load_model`, with the model's optimizer distributed again.

    `options` are those of DistributedOptimizer, which are not saved. Every rank may read the same file; if ranks read
    different files, broadcast_global_variables makes them equal. ValueError if the model was saved without an
    optimizer.
    """
    model = keras.models.load_model(filepath, custom_objects=custom_objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(f"{filepath} has no optimizer: load it by keras.models.load_model, and compile it")
    DistributedOptimizer(optimizer, comm, **options)
    return model
