"""The object that torch gets as the backend of a device of a process group.

Invariant: it is the group itself under another class; nothing happens here.
"""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist


class CpuBackend:
    """`group` as the backend for tensors in host memory, without any other abilities.

    It is an instance of Gloo's class: `torch.distributed.distributed_c10d._set_pg_timeout` leaves all backends but Gloo
    and NCCL at their old timeout, with a warning.
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
        return getattr(dist, "ProcessGroupGloo", CpuBackend)
