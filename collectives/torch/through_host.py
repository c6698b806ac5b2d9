"""Messages of tensors on CUDA devices, which pass through host memory.

Invariant: a message is made when what is in the caller's current stream has ended, for which the host waits. A received
message is copied to the device in the stream that was current when it was asked for. Once it counts as received, it can
be used in any stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from collectives.torch.tensors import assign


def leaving(tensor: Any) -> Any:
    """Returns `tensor`, or a copy in host memory if `tensor` is on a CUDA device."""
    return tensor.detach().cpu() if _is_on_device(tensor) else tensor


def arriving(tensor: Any) -> tuple[Any, Callable[[], None] | None]:
    """Returns a tensor in host memory that can receive a message for `tensor`, and a function that copies it back.

    If `tensor` is in host memory, returns `tensor` and None. If `tensor` is on a CUDA device, the function copies the
    received message to `tensor`. Any thread may call the function; the copy is complete when the function returns.
    """
    if not _is_on_device(tensor):
        return tensor, None
    if tensor.layout is not torch.strided:
        return tensor.detach().cpu(), None  # which cannot be received into, as the caller will find
    host = torch.empty(tensor.shape, dtype=tensor.dtype)
    stream = torch.cuda.current_stream(tensor.device)

    def finish() -> None:
        with torch.cuda.stream(stream):
            assign(tensor.detach(), host)  # waits, since the host's memory is pageable

    return host, finish


def _is_on_device(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_cuda
