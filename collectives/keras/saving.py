"""Loads models that were saved with a distributed optimizer, so that their training can continue.

Invariant: the loaded optimizer has the slots (its state variables, such as momenta) that were saved.
"""

from __future__ import annotations

from typing import Any

from collectives.core.communicator import Communicator
from collectives.keras.framework import keras
from collectives.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any, custom_objects: dict[str, Any] | None = None, comm: Communicator | None = None, **options: Any
) -> Any:
    """Loads a model by `keras.models.load_model`, and applies `DistributedOptimizer` to its optimizer.

    `options`: keyword arguments of DistributedOptimizer; the file does not contain them. Every rank may read the same
    file. If ranks read different files, broadcast_global_variables makes the models equal afterwards. ValueError if the
    model was saved without an optimizer.
    """
    model = keras.models.load_model(filepath, custom_objects=custom_objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError(f"{filepath} has no optimizer: load it by keras.models.load_model, and compile it")
    DistributedOptimizer(optimizer, comm, **options)
    return model
