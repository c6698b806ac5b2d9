"""`import collectives.horovod.tensorflow.keras as hvd`: Horovod's API for Keras in TensorFlow.

Invariant: the names are those of collectives.horovod.keras, since `tf.keras` and `keras` are the same package.
"""

from __future__ import annotations

from collectives.horovod.common import *  # noqa: F403
from collectives.horovod.keras.compression import Compression as Compression
from collectives.horovod.keras.ops import allgather as allgather
from collectives.horovod.keras.ops import allreduce as allreduce
from collectives.horovod.keras.ops import broadcast as broadcast
from collectives.horovod.keras.ops import broadcast_global_variables as broadcast_global_variables
from collectives.horovod.keras.ops import reducescatter as reducescatter
from collectives.horovod.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from collectives.horovod.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from collectives.horovod.keras.optimizer import load_model as load_model
from collectives.horovod.tensorflow.keras import callbacks as callbacks
