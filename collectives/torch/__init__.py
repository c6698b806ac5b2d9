"""For PyTorch: a backend for torch.distributed, and functions like Horovod's that work on a communicator.

    import torch.distributed as dist, collectives.torch
    dist.init_process_group("collectives")

    comm = collectives.init()
    optimizer = collectives.torch.DistributedOptimizer(optimizer)

Invariant: this is the public interface of the package. Importing it registers the backend, and does nothing else.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise ImportError("collectives.torch needs PyTorch: pip install torch") from _error

from collectives.torch.autoload import register as _register
from collectives.torch.compression import Compression as Compression
from collectives.torch.diloco import DiLoCo as DiLoCo
from collectives.torch.functions import Handle as Handle
from collectives.torch.functions import allgather as allgather
from collectives.torch.functions import allgather_async as allgather_async
from collectives.torch.functions import allreduce as allreduce
from collectives.torch.functions import allreduce_ as allreduce_
from collectives.torch.functions import allreduce_async as allreduce_async
from collectives.torch.functions import allreduce_async_ as allreduce_async_
from collectives.torch.functions import alltoall as alltoall
from collectives.torch.functions import barrier as barrier
from collectives.torch.functions import broadcast as broadcast
from collectives.torch.functions import broadcast_ as broadcast_
from collectives.torch.functions import broadcast_async as broadcast_async
from collectives.torch.functions import broadcast_async_ as broadcast_async_
from collectives.torch.functions import grouped_allreduce as grouped_allreduce
from collectives.torch.functions import grouped_allreduce_ as grouped_allreduce_
from collectives.torch.functions import grouped_allreduce_async as grouped_allreduce_async
from collectives.torch.functions import grouped_allreduce_async_ as grouped_allreduce_async_
from collectives.torch.functions import poll as poll
from collectives.torch.functions import reducescatter as reducescatter
from collectives.torch.functions import synchronize as synchronize
from collectives.torch.hooks import HookState as HookState
from collectives.torch.hooks import auto_hook as auto_hook
from collectives.torch.hooks import bf16_hook as bf16_hook
from collectives.torch.hooks import fp8_hook as fp8_hook
from collectives.torch.hooks import fp16_hook as fp16_hook
from collectives.torch.hooks import int8_hook as int8_hook
from collectives.torch.meeting import Options as Options
from collectives.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from collectives.torch.process_group import CollectivesProcessGroup as CollectivesProcessGroup
from collectives.torch.state import ModelAverager as ModelAverager
from collectives.torch.state import average_parameters as average_parameters
from collectives.torch.state import broadcast_object as broadcast_object
from collectives.torch.state import broadcast_optimizer_state as broadcast_optimizer_state
from collectives.torch.state import broadcast_parameters as broadcast_parameters

_register()
