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
    """Raises RuntimeError if one of `tensors` is a leaf that requires a gradient: autograd forbids to overwrite it.

    Does nothing under torch.no_grad().
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad and tensor.is_leaf for tensor in tensors):
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation: call the collective under "
            "torch.no_grad(), or on tensor.detach()"
        )


def overwritten(tensors: Sequence[Any], gradient: Gradient) -> None:
    """Tells autograd that a collective overwrites these tensors; called before or after the collective.

    Call `check` for the tensors first. `gradient(g)` returns the gradient of the old tensor, if g is the gradient of
    the new tensor.
    """
    recording = torch.is_grad_enabled()
    for tensor in tensors:
        if recording and tensor.requires_grad:
            _Overwritten.apply(tensor, gradient)
        else:
            torch.autograd.graph.increment_version(tensor)


def differentiable(tensor: Any, gradient: Gradient) -> None:
    """Tells autograd how to differentiate a collective that overwrote `tensor` under torch.no_grad().

    `gradient(g)` returns the gradient of the old tensor, if g is the gradient of the new tensor. Does nothing for a
    leaf.
    """
    if torch.is_grad_enabled() and tensor.requires_grad and not tensor.is_leaf:
        _Overwritten.apply(tensor, gradient)


@contextmanager
def overwriting(tensors: Sequence[Any], gradient: Gradient) -> Iterator[None]:
    """A context manager for a collective that overwrites these tensors; it tells autograd about the change.

    If the collective fails during the transfer, the tensors' values are undefined. `gradient(g)` returns the gradient
    of an old tensor, if g is the gradient of the new tensor. Raises RuntimeError for a leaf that requires a gradient.
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
