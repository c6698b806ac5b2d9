"""Collects the messages that belong to one call of torch's `batch_isend_irecv`.

Invariant: messages of one batch are handed on together, with the last of them, and messages outside a batch at once.
torch announces the beginning and the end of a batch to process groups that are written in C++ only
(`type(group) is ProcessGroup`). So this module looks for the batch among the callers of the process group.
"""

from __future__ import annotations

import inspect
import sys
import threading
from types import FrameType
from typing import Final

from torch.distributed import distributed_c10d

from collectives.torch.operations import Operation
from collectives.torch.tensors import is_cuda

_BATCH: Final = inspect.unwrap(distributed_c10d.batch_isend_irecv).__code__
_NEAR: Final = 8  # callers: it calls isend or irecv, which calls the process group


class Batches:
    """The messages of CUDA tensors of one process group, by thread and batch."""

    def __init__(self) -> None:
        self._collected: Final = threading.local()

    def complete(self, operation: Operation) -> list[Operation]:
        """Adds a message of a CUDA tensor to the batch in progress; returns the batch's messages if it is the last one.

        Returns an empty list if more are to come, and only this message if there is no batch.
        """
        frame = _batch()
        if frame is None:
            return [operation]
        batch, own = frame.f_locals["p2p_op_list"], self._collected
        if getattr(own, "frame", None) is not frame:  # also after a batch that ended with an error
            own.frame, own.operations = frame, []
        own.operations.append(operation)
        if len(own.operations) < sum(is_cuda(one.tensor) for one in batch):
            return []
        found: list[Operation] = own.operations
        del own.frame, own.operations
        return found


def _batch() -> FrameType | None:
    """The frame of the `batch_isend_irecv` that is calling; None if there is none."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_NEAR):
        if frame is None or frame.f_code is _BATCH:
            return frame
        frame = frame.f_back
    return None
