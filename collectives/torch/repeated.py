"""Allreduces of memory that was reduced before: prepared once, as a plan of the communicator.

DistributedDataParallel reduces the same few buckets in every step, and a plan takes less time to start than a call.

Invariant: a plan is used only for a tensor with the address, number of elements and dtype for which it was made. Plans
keep no tensor alive, so the memory of a plan may be freed; such a plan is not used until a tensor lies there again.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import torch
from torch.distributed import ReduceOp

from collectives.calls.plan import Plan
from collectives.core.communicator import Communicator
from collectives.torch.tensors import unowned

_MOST_KEPT: Final = 64  # plans; one for each bucket of a model

Key: TypeAlias = "tuple[int, int, Any, float | None]"  # address, elements, dtype, timeout


class Repeated:
    """The plans of one process group. Only one thread at a time may call methods."""

    def __init__(self, comm: Communicator) -> None:
        self._comm: Final = comm
        self._plans: Final[dict[Key, Plan | None]] = {}  # None: was reduced once

    def plan(self, tensor: Any, op: Any, timeout: float | None) -> Plan | None:
        """Returns the plan that sums `tensor` over all ranks, in place; None if there is none.

        There is one from the second allreduce on, for sums of ordinary tensors in host memory. `op`: torch's reduce op.
        `timeout`: in seconds; None for the communicator's timeout.
        """
        if type(tensor) is not torch.Tensor or not tensor.is_cpu or tensor.layout is not torch.strided:
            return None
        if tensor.requires_grad or not tensor.is_contiguous() or tensor.is_complex() or tensor.is_neg():
            return None
        if tensor.is_nested or op != ReduceOp.SUM:
            return None
        key = (tensor.data_ptr(), tensor.numel(), tensor.dtype, timeout)
        found = self._plans.get(key)
        if found is not None:
            return found
        if key not in self._plans:
            if len(self._plans) >= _MOST_KEPT:
                self._plans.clear()
            self._plans[key] = None
            return None
        array = unowned(tensor)
        plan = self._plans[key] = self._comm.allreduce_plan(array, out=array, timeout=timeout)
        return plan
