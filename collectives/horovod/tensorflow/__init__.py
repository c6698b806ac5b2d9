"""`import collectives.horovod.tensorflow as hvd`: Horovod's API for TensorFlow.

Invariant: names, arguments and defaults are those of horovod.tensorflow 0.28; Keras is imported only when it is needed.
"""

from __future__ import annotations

from typing import Any

import collectives.tensorflow as _checked  # noqa: F401  (says which extra to install where TensorFlow is missing)
from collectives.horovod.common import *  # noqa: F403
from collectives.horovod.tensorflow.compression import Compression as Compression
from collectives.horovod.tensorflow.functions import BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook
from collectives.horovod.tensorflow.functions import allgather_object as allgather_object
from collectives.horovod.tensorflow.functions import broadcast_ as broadcast_
from collectives.horovod.tensorflow.functions import broadcast_global_variables as broadcast_global_variables
from collectives.horovod.tensorflow.functions import broadcast_object as broadcast_object
from collectives.horovod.tensorflow.functions import broadcast_object_fn as broadcast_object_fn
from collectives.horovod.tensorflow.functions import broadcast_variables as broadcast_variables
from collectives.horovod.tensorflow.functions import local_rank_op as local_rank_op
from collectives.horovod.tensorflow.functions import local_size_op as local_size_op
from collectives.horovod.tensorflow.functions import process_set_included_op as process_set_included_op
from collectives.horovod.tensorflow.functions import rank_op as rank_op
from collectives.horovod.tensorflow.functions import size_op as size_op
from collectives.horovod.tensorflow.ops import allgather as allgather
from collectives.horovod.tensorflow.ops import allreduce as allreduce
from collectives.horovod.tensorflow.ops import alltoall as alltoall
from collectives.horovod.tensorflow.ops import barrier as barrier
from collectives.horovod.tensorflow.ops import broadcast as broadcast
from collectives.horovod.tensorflow.ops import grouped_allgather as grouped_allgather
from collectives.horovod.tensorflow.ops import grouped_allreduce as grouped_allreduce
from collectives.horovod.tensorflow.ops import grouped_reducescatter as grouped_reducescatter
from collectives.horovod.tensorflow.ops import join as join
from collectives.horovod.tensorflow.ops import reducescatter as reducescatter
from collectives.horovod.tensorflow.training import DistributedGradientTape as DistributedGradientTape
from collectives.horovod.tensorflow.training import DistributedOptimizer as DistributedOptimizer
from collectives.horovod.tensorflow.training import PartialDistributedGradientTape as PartialDistributedGradientTape


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":
        from collectives.horovod.keras.normalization import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
