"""`import collectives.horovod.torch as hvd`: Horovod's API for PyTorch.

Invariant: names, arguments and defaults are those of horovod.torch 0.28.
"""

from __future__ import annotations

import collectives.torch as _checked  # noqa: F401  (says which extra to install where PyTorch is missing)
from collectives.horovod.common import *  # noqa: F403
from collectives.horovod.objects import allgather_object as allgather_object
from collectives.horovod.objects import broadcast_object as broadcast_object
from collectives.horovod.torch.background import allgather_async as allgather_async
from collectives.horovod.torch.background import allreduce_async as allreduce_async
from collectives.horovod.torch.background import allreduce_async_ as allreduce_async_
from collectives.horovod.torch.background import alltoall_async as alltoall_async
from collectives.horovod.torch.background import broadcast_async as broadcast_async
from collectives.horovod.torch.background import broadcast_async_ as broadcast_async_
from collectives.horovod.torch.background import grouped_allgather_async as grouped_allgather_async
from collectives.horovod.torch.background import grouped_allreduce_async as grouped_allreduce_async
from collectives.horovod.torch.background import grouped_allreduce_async_ as grouped_allreduce_async_
from collectives.horovod.torch.background import grouped_reducescatter_async as grouped_reducescatter_async
from collectives.horovod.torch.background import poll as poll
from collectives.horovod.torch.background import reducescatter_async as reducescatter_async
from collectives.horovod.torch.background import sparse_allreduce_async as sparse_allreduce_async
from collectives.horovod.torch.background import synchronize as synchronize
from collectives.horovod.torch.compression import Compression as Compression
from collectives.horovod.torch.joining import join as join
from collectives.horovod.torch.normalization import SyncBatchNorm as SyncBatchNorm
from collectives.horovod.torch.ops import allgather as allgather
from collectives.horovod.torch.ops import allreduce as allreduce
from collectives.horovod.torch.ops import allreduce_ as allreduce_
from collectives.horovod.torch.ops import alltoall as alltoall
from collectives.horovod.torch.ops import barrier as barrier
from collectives.horovod.torch.ops import broadcast as broadcast
from collectives.horovod.torch.ops import broadcast_ as broadcast_
from collectives.horovod.torch.ops import grouped_allgather as grouped_allgather
from collectives.horovod.torch.ops import grouped_allreduce as grouped_allreduce
from collectives.horovod.torch.ops import grouped_allreduce_ as grouped_allreduce_
from collectives.horovod.torch.ops import grouped_reducescatter as grouped_reducescatter
from collectives.horovod.torch.ops import reducescatter as reducescatter
from collectives.horovod.torch.training import DistributedOptimizer as DistributedOptimizer
from collectives.horovod.torch.training import broadcast_optimizer_state as broadcast_optimizer_state
from collectives.horovod.torch.training import broadcast_parameters as broadcast_parameters
