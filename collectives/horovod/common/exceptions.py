"""`from collectives.horovod.common.exceptions import HorovodInternalError`, as scripts for elastic jobs import it.

Invariant: what operations raise where they fail is an instance of HorovodInternalError.
"""

from __future__ import annotations

from collectives.native.errors import CollectiveError as HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):
    """Raised by Horovod's elastic mode where hosts come or go. There is no such mode here, so nothing raises it."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
