"""What torch's autograd has to know of a collective that overwrites tensors.

Invariant: it counts as an in-place operation of torch's. A leaf tensor that requires a gradient is refused with torch's
message before anything is sent; a backward pass that saved a tensor which was overwritten since raises torch's error;
the gradient is that of the collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

Gradient: TypeAlias = "Callable[[Any], Any]"  # what flows back to a tensor from what arrives at its result


def check(tensors: Sequence[Any]) -> None:
    """RuntimeError if a tensor is a leaf that requires a gradient, except under torch.no_grad()."""
    if torch.is_grad_enabled() and any(tensor.requires_grad and tensor.is_leaf for tensor in tensors):
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation: call the collective under "
            "torch.no_grad(), or on tensor.detach()"
        )


def overwritten(tensors: Sequence[Any], gradient: Gradient) -> None:
    """Tell autograd that these are, or will be, others than they were. Each has been checked."""
    recording = torch.is_grad_enabled()
    for tensor in tensors:
        if recording and tensor.requires_grad:
            _Overwritten.apply(tensor, gradient)
        else:
            torch.autograd.graph.increment_version(tensor)


def differentiable(tensor: Any, gradient: Gradient) -> None:
    """Record `gradient` for tensors that were overwritten under torch.no_grad(); not for leaf tensors, which cannot
    have one."""
    if torch.is_grad_enabled() and tensor.requires_grad and not tensor.is_leaf:
        _Overwritten.apply(tensor, gradient)


@contextmanager
def overwriting(tensors: Sequence[Any], gradient: Gradient) -> Iterator[None]:
    """Around a blocking collective that overwrites these. If it fails they are undefined."""
    check(tensors)
    try:
        yield
    except (TypeError, ValueError):  # nothing was sent
        raise
    except BaseException:
        torch.autograd.graph.increment_version(tensors)
        raise
    overwritten(tensors, gradient)


class _Overwritten(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Any, gradient: Gradient) -> Any:
        context.gradient = gradient
        context.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(context: Any, *above: Any) -> Any:
        return context.gradient(above[0]), None
