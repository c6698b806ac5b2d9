"""Tells torch's autograd about collectives that overwrite tensors.

Invariant: a collective that overwrites a tensor behaves as an in-place operation of torch. A leaf tensor that requires
a gradient is refused with torch's error text before anything is sent. If a collective overwrites a tensor that the
backward pass has saved, the backward pass raises torch's error. The backward pass includes the gradient of the
collective itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

Gradient: TypeAlias = "Callable[[Any], Any]"  # from the gradient of the result to that of the tensor


def check(tensors: Sequence[Any]) -> None:
    """RuntimeError if a tensor is a leaf that requires a gradient, except under torch.no_grad()."""
    if torch.is_grad_enabled() and any(tensor.requires_grad and tensor.is_leaf for tensor in tensors):
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation: call the collective under "
            "torch.no_grad(), or on tensor.detach()"
        )


def overwritten(tensors: Sequence[Any], gradient: Gradient) -> None:
    """Tell autograd that a collective overwrites these tensors; called before or after the collective.

    Call `check` for the tensors first. `gradient` computes a tensor's gradient from that of the collective's result.
    """
    recording = torch.is_grad_enabled()
    for tensor in tensors:
        if recording and tensor.requires_grad:
            _Overwritten.apply(tensor, gradient)
        else:
            torch.autograd.graph.increment_version(tensor)


def differentiable(tensor: Any, gradient: Gradient) -> None:
    """Record `gradient` as the backward function of a tensor overwritten under torch.no_grad(), except for a leaf."""
    if torch.is_grad_enabled() and tensor.requires_grad and not tensor.is_leaf:
        _Overwritten.apply(tensor, gradient)


@contextmanager
def overwriting(tensors: Sequence[Any], gradient: Gradient) -> Iterator[None]:
    """A context for a blocking collective that overwrites these tensors; tells autograd that it has done so.

    If the collective fails during the transfer, the tensors' values are undefined. `gradient` computes a tensor's
    gradient from that of the collective's result.
    """
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
