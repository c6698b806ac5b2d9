"""The object that torch gets as the backend of a device of a process group.

Invariant: the object passes everything on to the process group, and only has another class.
"""

from __future__ import annotations

from typing import Any, Final

import torch.distributed as dist


class CpuBackend:
    """`group` as the backend for tensors in host memory, without optional abilities.

    To isinstance() it is Gloo's class, because `torch.distributed.distributed_c10d._set_pg_timeout` changes only the
    timeouts of Gloo and NCCL, and warns for other backends.
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
