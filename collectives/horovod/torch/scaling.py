"""Local arithmetic before and after a collective: factors, averages of integers, Horovod's scale of gradients.

Invariant: nothing here communicates with other ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Reduction(NamedTuple):
    """How a tensor is reduced: multiplied by `before`, reduced by `op`, multiplied by `after`, divided by `divisor`.

    `divisor` is the number of ranks for an average of integers, whose `op` is "sum"; otherwise it is 1. Integers are
    multiplied in float64 and then rounded towards 0, as in Horovod.
    """

    op: str
    before: float
    after: float
    divisor: int

    def prepared(self, tensor: Any) -> Any:
        return _scaled(tensor, self.before)

    def finished(self, tensor: Any) -> Any:
        if self.divisor > 1 and self.after == 1.0:
            return torch.div(tensor, self.divisor, rounding_mode="trunc")
        return _scaled(tensor, self.after, self.divisor)

    def prepare_(self, tensor: Any) -> None:
        if self.before != 1.0:
            tensor.copy_(self.prepared(tensor))

    def finish_(self, tensor: Any) -> None:
        if (self.after, self.divisor) != (1.0, 1):
            tensor.copy_(self.finished(tensor))


def reduction(op: str, before: float, after: float, size: int, tensor: Any) -> Reduction:
    """Decides how tensors with the dtype of `tensor` are reduced on `size` ranks: by which op, with which factors.

    `before`, `after`: factors for tensors before and after the reduction. Raises TypeError if `tensor` is no tensor, or
    has dtype bool and a factor is not 1.
    """
    check_tensor(tensor)
    if tensor.dtype == torch.bool and (before, after) != (1.0, 1.0):
        raise TypeError("prescale_factor and postscale_factor are for numbers, not for torch.bool")
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    if whole and op == "average":
        return Reduction("sum", float(before), float(after), size)
    return Reduction(op, float(before), float(after), 1)


def check_tensor(tensor: Any) -> Any:
    """Returns `tensor`. TypeError if it is not a PyTorch tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is needed, not {type(tensor).__name__}")
    return tensor


def _scaled(tensor: Any, factor: float, divisor: int = 1) -> Any:
    if factor == 1.0 and divisor == 1:
        return tensor
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor * (factor / divisor)
    return (tensor.double() * factor / divisor).to(tensor.dtype)


def gradient_times(tensor: Any, factor: float) -> Any:
    """Returns a tensor with the values of `tensor`; in backpropagation its gradient is multiplied by `factor`.

    collectives.torch computes gradients of the sum of all ranks' losses. Horovod multiplies or divides these gradients
    by the number of ranks.
    """
    check_tensor(tensor)
    return _Scaled.apply(tensor, factor) if tensor.requires_grad and factor != 1 else tensor


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, factor: float) -> Any:
        context.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *above: Any) -> Any:
        return above[0] * context.factor, None
