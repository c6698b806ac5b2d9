"""The exceptions module that scripts for elastic jobs import: `collectives.horovod.common.exceptions`.

Invariant: HorovodInternalError is the base class of all errors of communication between ranks.
"""

from __future__ import annotations

from collectives.native.errors import CollectiveError as HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HostsUpdatedInterrupt(RuntimeError):
    """In Horovod's elastic mode, raised if hosts join or leave. This library has no such mode, so nothing raises it."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
