"""What is done to tensors before and after they travel: factors, averages of integers, Horovod's scale of gradients.

Invariant: nothing here communicates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Reduction(NamedTuple):
    """How a tensor is reduced: `op` is the communicator's, after which there are factors, and a divisor of integers."""

    op: str
    before: float
    after: float
    divisor: int

    def prepared(self, tensor: Any) -> Any:
        return tensor if self.before == 1.0 else tensor * self.before

    def finished(self, tensor: Any) -> Any:
        if self.divisor > 1:
            tensor = torch.div(tensor, self.divisor, rounding_mode="trunc")
        return tensor if self.after == 1.0 else tensor * self.after

    def prepare_(self, tensor: Any) -> None:
        if self.before != 1.0:
            tensor.mul_(self.before)

    def finish_(self, tensor: Any) -> None:
        if self.divisor > 1:
            tensor.div_(self.divisor, rounding_mode="trunc")
        if self.after != 1.0:
            tensor.mul_(self.after)


def reduction(op: str, before: float, after: float, size: int, tensor: Any) -> Reduction:
    """For tensors like this one. TypeError where factors cannot multiply it."""
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    if whole and (before, after) != (1.0, 1.0):
        raise TypeError(f"prescale_factor and postscale_factor are for floating-point tensors, not {tensor.dtype}")
    if whole and op == "average":
        return Reduction("sum", 1.0, 1.0, size)
    return Reduction(op, float(before), float(after), 1)


def gradient_times(tensor: Any, factor: float) -> Any:
    """`tensor`, whose gradient is multiplied: Horovod averages where the sum of all ranks' losses would want a sum."""
    return _Scaled.apply(tensor, factor) if tensor.requires_grad and factor != 1 else tensor


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, factor: float) -> Any:
        context.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *above: Any) -> Any:
        return above[0] * context.factor, None
