"""Allreduces of memory that was reduced before: prepared once, as a plan of the communicator.

DistributedDataParallel reduces the same few buckets in every step, and a plan takes less time to start than a call.

Invariant: a plan is used only for a tensor with the address, number of elements and dtype for which it was made. Plans
keep no tensor alive, so the memory of a plan may be freed; such a plan is not used until a tensor lies there again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.distributed import ReduceOp

from collectives.calls.plan import Plan
from collectives.core.communicator import Communicator
from collectives.torch.tensors import unowned

_MOST_KEPT: Final = 64  # plans; one for each bucket of a model

Key: TypeAlias = "tuple[Hashable, ...]"  # of each tensor: address, shape and dtype; then the timeout


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
        if op != ReduceOp.SUM or not _is_plain(tensor):
            return None
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype, timeout)
        if not self._is_repeated(key):
            return None
        plan = self._plans[key]
        if plan is None:
            array = unowned(tensor)
            plan = self._plans[key] = self._comm.allreduce_plan(array, out=array, timeout=timeout)
        return plan

    def plan_of_many(self, tensors: Sequence[Any], op: Any, timeout: float | None) -> Plan | None:
        """The same for an allreduce of all `tensors`."""
        if op != ReduceOp.SUM or not tensors or not all(map(_is_plain, tensors)):
            return None
        key = (*((tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors), timeout)
        if not self._is_repeated(key):
            return None
        plan = self._plans[key]
        if plan is None:
            arrays = [unowned(tensor) for tensor in tensors]
            plan = self._plans[key] = self._comm.allreduce_many_plan(arrays, timeout=timeout)
        return plan

    def _is_repeated(self, key: Key) -> bool:
        if key in self._plans:
            return True
        if len(self._plans) >= _MOST_KEPT:
            self._plans.clear()
        self._plans[key] = None
        return False


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_complex()
        and not tensor.is_neg()
    )
