"""Imports Keras 3 and finds its backend; if Keras or the backend is missing, the error says what to install.

Invariant: `keras`, imported from this module, is Keras 3; no other module checks Keras's version.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from collectives.arrays.array import Array

try:
    import keras
except ImportError as error:
    if error.name not in (None, "keras"):
        raise ImportError(
            f"Keras's backend needs {error.name!r}, which is not there: install it, or set KERAS_BACKEND",
            name=error.name,
        ) from error
    raise ImportError("collectives.keras needs Keras 3: pip install keras tensorflow") from error

if int(keras.__version__.partition(".")[0]) < 3:
    raise ImportError(
        f"collectives.keras needs Keras 3, and this is {keras.__version__}: pip install keras tensorflow, in an "
        "environment without TF_USE_LEGACY_KERAS"
    )

__all__ = ["BACKENDS", "backend", "innermost", "keras", "read", "settle", "updates"]

BACKENDS: Final = ("tensorflow", "torch", "jax")


def backend() -> str:
    """Returns the name of the backend that Keras uses: "tensorflow", "torch" or "jax".

    Raises NotImplementedError for any other backend.
    """
    name: str = keras.backend.backend()
    if name not in BACKENDS:
        raise NotImplementedError(
            f"collectives.keras exchanges gradients on Keras's backends {', '.join(BACKENDS)}, not on {name!r}: set "
            "KERAS_BACKEND=tensorflow in the environment before keras is imported"
        )
    return name


def read(variable: Any) -> Array:
    """The value of a Keras variable as a new array."""
    return np.array(keras.ops.convert_to_numpy(variable))


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer that updates weights: the one inside a LossScaleOptimizer, else `optimizer` itself."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def updates(optimizer: Any) -> int:
    """Returns how many times this optimizer has updated the weights; steps that loss scaling skipped do not count."""
    inner = innermost(optimizer)
    # If gradients are accumulated, `iterations` counts only accumulations; early versions of Keras have nothing else.
    counter = getattr(inner, "_iterations", None)
    return int(read(inner.iterations if counter is None else counter))


def settle(model: Any) -> None:
    """Copies weights and optimizer state to the model's variables in the middle of an epoch, so that they can be used.

    Only Keras's JAX trainer needs this call, because the trainer keeps weights and state outside the variables during
    an epoch. The trainer reads the variables again afterwards.
    """
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()
