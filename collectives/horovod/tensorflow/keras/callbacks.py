"""Horovod's callbacks, under Horovod's module name for TensorFlow's Keras.

Invariant: the callbacks are those of collectives.horovod.keras.callbacks.
"""

from collectives.horovod.keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
