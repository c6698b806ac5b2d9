"""hvd.SyncBatchNormalization for Keras 3.

Invariant: arguments are Keras's, and Horovod's `fused`. As in Horovod, `fused` must be False.
"""

from __future__ import annotations

from typing import Any

from collectives import keras as hooks
from collectives.horovod import world
from collectives.keras.framework import keras


@keras.saving.register_keras_serializable("collectives.horovod")
class SyncBatchNormalization(hooks.SyncBatchNormalization):
    """Batch statistics over the batches of all ranks. ValueError for fused=True."""

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        super().__init__(comm=world.current().comm if world.exists() else None, **kwargs)
