"""Keras on PyTorch: training steps run eagerly, so a call to exchange gradients does it immediately.

Invariant: this rank's gradients are not changed; results are new tensors, on the gradients' device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

import ml_dtypes
import numpy as np
import torch

from collectives.arrays.array import Array
from collectives.core.communicator import Communicator
from collectives.gradients.channel import channel
from collectives.gradients.plan import Entry
from collectives.keras.backends import Accumulate, Options
from collectives.keras.backends.host import HostExchange, entry
from collectives.keras.hook import Exchange

F = TypeVar("F", bound=Callable[..., Any])

NOT_COMPILED: Final = (
    "torch.compile cannot talk to other ranks in the middle of a step: compile the model with jit_compile=False"
)


def exchange(comm: Communicator, options: Options) -> Exchange:
    return _Exchange(comm, options)


def typed_errors(found: Exchange) -> AbstractContextManager[None]:
    return nullcontext()  # errors of eager steps have their own types already


def accumulate(every: int, sparse_as_dense: bool) -> Accumulate:
    return _Accumulate(every)


def allreduce(tensor: Any, comm: Communicator) -> Any:
    return _AllreduceSum.apply(tensor, comm)


def after(gradients: Sequence[Any]) -> AbstractContextManager[Any]:
    return nullcontext()


def unconverted(function: F) -> F:
    return function


class _Exchange(HostExchange):
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        owners = [None] * len(gradients) if variables is None else list(variables)
        given = [
            self.filled(g, v, lambda variable: torch.zeros_like(variable.value))
            for g, v in zip(gradients, owners, strict=True)
        ]
        arrays = {i: _array(g) for i, g in enumerate(given) if g is not None}
        names = [str(getattr(v, "path", "")) for v in owners]
        plan = self.prepare(
            [entry(name, arrays[i].dtype, arrays[i].shape) if i in arrays else Entry(name, "none")
             for i, name in enumerate(names)]
        )  # fmt: skip
        results = dict(zip(arrays, self.run(plan, list(arrays.values())), strict=True))
        return [None if g is None else _tensor(results[i], g) for i, g in enumerate(given)]


class _Accumulate:
    def __init__(self, every: int) -> None:
        self._every: Final = every
        self._count = 0
        self._sums: dict[int, Any] = {}

    def __call__(self, gradients: Sequence[Any], step: Callable[[list[Any]], object]) -> None:
        for i, g in enumerate(gradients):
            if g is not None:
                # The first gradient is copied: torch writes the next pass's gradients to the same memory.
                self._sums[i] = self._sums[i] + g if i in self._sums else g.detach().clone()
        self._count += 1
        if self._count % self._every == 0:
            sums, self._sums = self._sums, {}
            step([sums[i] / self._every if i in sums else None for i in range(len(gradients))])


class _AllreduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, comm: Communicator) -> Any:
        ctx.comm = comm
        return _tensor(channel(comm).comm.allreduce(_array(tensor)), tensor)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Any, None]:
        return _AllreduceSum.apply(upstream[0], ctx.comm), None


def _array(tensor: Any) -> Array:
    there = tensor.detach().to_dense().cpu() if tensor.is_sparse else tensor.detach().cpu()
    there = there.contiguous()
    if there.dtype == torch.bfloat16:  # torch cannot convert it to NumPy
        return np.asarray(there.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(there.numpy())


def _tensor(array: Array, like: Any) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(array).to(like.device)
