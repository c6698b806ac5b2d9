"""Keras 3 on several ranks: optimizers that use all ranks' gradients, callbacks, layers and model averaging.

    comm = collectives.init()
    optimizer = collectives.keras.DistributedOptimizer(keras.optimizers.Adam(1e-3 * comm.size))
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    model.fit(x, y, callbacks=[collectives.keras.BroadcastGlobalVariablesCallback(0)])

Invariant: importing this package imports Keras, with the backend that the user has set. It changes nothing in Keras
before the first call of `DistributedOptimizer`.
"""

from collectives.keras import callbacks as callbacks
from collectives.keras.averaging import ModelAveragingCallback as ModelAveragingCallback
from collectives.keras.callbacks import BestModelCheckpoint as BestModelCheckpoint
from collectives.keras.callbacks import BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallback
from collectives.keras.callbacks import LearningRateScheduleCallback as LearningRateScheduleCallback
from collectives.keras.callbacks import LearningRateWarmupCallback as LearningRateWarmupCallback
from collectives.keras.callbacks import MetricAverageCallback as MetricAverageCallback
from collectives.keras.data import scatter_data as scatter_data
from collectives.keras.diloco import DiLoCoCallback as DiLoCoCallback
from collectives.keras.normalization import SyncBatchNormalization as SyncBatchNormalization
from collectives.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from collectives.keras.saving import load_model as load_model
from collectives.keras.state import broadcast_global_variables as broadcast_global_variables
