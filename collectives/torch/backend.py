"""The object that a process group gives to torch as its backend for one type of device.

Invariant: the object forwards all calls to the process group. Only its class, and the features that it reports to
torch, are its own.
"""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist


class ForwardingBackend:
    """The object that torch.distributed uses as a process group's backend for tensors on one type of device.

    It passes all operations on to the process group `group`. It has none of the optional features of torch's backends.
    For isinstance() it is a ProcessGroupGloo of torch. Otherwise `torch.distributed.distributed_c10d._set_pg_timeout`
    would warn, and would not change the group's timeout.
    """

    supports_coalescing = False
    supports_shrinking = False
    supports_splitting = False
    supports_time_estimate = False

    def __init__(self, group: Any) -> None:
        self._group: Final = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def __repr__(self) -> str:
        return repr(self._group)

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return getattr(dist, "ProcessGroupGloo", ForwardingBackend)
