"""Encodes PyTorch's tensors inside objects that are sent between ranks.

Invariant: a tensor arrives with its dtype, shape and values, in memory of its own, and without a gradient history.
"""

from __future__ import annotations

from typing import Any

import torch

from collectives.gradients.encoding import Codec, register
from collectives.torch.tensors import reading


def _parts(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), reading(tensor, moved=True).tobytes()


def _made(parts: Any) -> Any:
    name, shape, data = parts
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype {name!r}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


register("torch.Tensor", Codec(torch.Tensor, _parts, _made))
register("torch.nn.Parameter", Codec(torch.nn.Parameter, lambda p: p.detach(), torch.nn.Parameter))
register("torch.Size", Codec(torch.Size, tuple, torch.Size))
