"""hvd.SyncBatchNormalization for Keras 3.

Invariant: arguments are those of Keras's BatchNormalization, and Horovod's `fused`, which must be False as in Horovod.
"""

from __future__ import annotations

from typing import Any

from collectives import keras as hooks
from collectives.horovod import world
from collectives.keras.framework import keras


@keras.saving.register_keras_serializable("collectives.horovod")
class SyncBatchNormalization(hooks.SyncBatchNormalization):
    """Keras's BatchNormalization, with statistics over the batches of all ranks. ValueError unless `fused` is False."""

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        super().__init__(comm=world.current().comm if world.exists() else None, **kwargs)
