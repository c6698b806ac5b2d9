"""Training with Horovod's names: the distributed optimizer, and broadcasts that make all ranks start equal.

Invariant: every argument of Horovod's functions takes effect, raises an error, or causes a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

import collectives.torch as hooks
from collectives.horovod.compression import is_custom, wire
from collectives.horovod.options import Factors, check_groups, predivided
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.horovod.reductions import Average, training_op
from collectives.horovod.torch import joining
from collectives.horovod.torch.compression import Compression


def DistributedOptimizer(
    optimizer: Any,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimizer of the class of `optimizer` whose `step` first reduces gradients over all ranks.

    Gradients are sent during backpropagation. To clip gradients, call `synchronize()`, which waits until they are
    reduced. Then clip them, and make the step: `with optimizer.skip_synchronize(): optimizer.step()`. The arguments are
    Horovod's; docs/horovod.md lists those with another effect here.
    """
    check_groups(num_groups, groups)
    factors = predivided(op, gradient_predivide_factor)
    named = None if named_parameters is None else list(named_parameters)
    if named is not None and any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    plain = factors == (1.0, 1.0) and not is_custom(compression)
    made = hooks.DistributedOptimizer(
        optimizer,
        named,
        wire(compression) if plain else _Compressor(compression, factors),
        backward_passes_per_step,
        training_op(op),
        process_set.training(),
        sparse_as_dense=sparse_as_dense,
    )
    joining.register(made, process_set)
    return made


class _Compressor:
    """Adapts a compressor of Horovod's kind, and factors of gradients, to the compressors of collectives.torch."""

    def __init__(self, compression: Any, factors: Factors) -> None:
        self._compression: Final = compression
        self._factors: Final = factors
        self._contexts: Final[dict[int, Any]] = {}  # of tensors that are being exchanged

    @torch.no_grad()
    def compress(self, tensor: Any, key: Any = None) -> Any:
        before = self._factors.before
        sent, context = self._compression.compress(tensor if before == 1.0 else tensor * before)
        self._contexts[id(sent)] = context
        return sent

    @torch.no_grad()
    def decompress(self, received: Any, tensor: Any) -> None:
        found = self._compression.decompress(received, self._contexts.pop(id(received)))
        if found is not tensor:
            tensor.copy_(found)
        if self._factors.after != 1.0:
            tensor.mul_(self._factors.after)


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites the tensors in `params` with those of rank `root_rank`.

    `params` is a state dict, `named_parameters()`, or an iterable of tensors in the same order on every rank.
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, Iterable):
        pairs = [p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(params)]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    hooks.broadcast_parameters(pairs, global_process_set.root(root_rank), comm=global_process_set.group())


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """Sets the optimizer's state and settings to those on rank `root_rank`.

    The other ranks need not have made a step before. `model` is not needed: Horovod uses it only for an artificial
    first step, which is not made here.
    """
    hooks.broadcast_optimizer_state(optimizer, global_process_set.root(root_rank), comm=global_process_set.group())
