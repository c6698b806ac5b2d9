"""Makes models and optimizers equal on all ranks: copies those of one rank, or averages models over all ranks.

Invariant: pickle is not used. An optimizer's tensors are sent as tensors, and the rest of its state as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.gradients import objects
from collectives.torch import encoding as _registered  # noqa: F401  (tensors in objects)
from collectives.torch.functions import broadcast_, grouped_allreduce_
from collectives.torch.tensors import check


def broadcast_parameters(parameters: Any, root_rank: int = 0, *, comm: Communicator | None = None) -> None:
    """Overwrites all tensors of `parameters` with those of rank `root_rank`.

    `parameters`: a module (its parameters and buffers), a state dict, or pairs (name, tensor). Names and shapes must be
    the same on every rank.
    """
    comm = default(comm)
    found = _tensors(parameters)
    for name, tensor in found:
        _check(name, tensor)
    with torch.no_grad():
        for _, tensor in found:
            broadcast_(tensor, root_rank, comm=comm)


def broadcast_object(value: Any, root_rank: int = 0, *, comm: Communicator | None = None) -> Any:
    """Returns the object `value` of rank `root_rank` on every rank; `value` is ignored on the other ranks.

    Supported are None, bool, int, float, complex, str, bytes, tensors and arrays, and lists, tuples, dicts and sets of
    them. For any other object the root raises TypeError, and the other ranks raise Aborted.
    """
    return objects.broadcast_object(default(comm), value, root_rank)


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0, *, comm: Communicator | None = None) -> None:
    """Sets the state and settings of `optimizer` to those on rank `root_rank`.

    The other ranks need not have made a step before. Raises TypeError on every rank if the root's state has objects
    other than tensors, numbers, strings, lists and dicts.
    """
    comm = default(comm)
    root = comm.rank == root_rank
    tensors: list[Any] = []
    described, problem = None, ""
    if root:
        state = optimizer.state_dict()
        try:
            described = json.dumps(_describe(state, tensors, "state"))
        except TypeError as error:
            problem = str(error)
    described, problem = broadcast_object([described, problem], root_rank, comm=comm)
    if problem:
        raise TypeError(f"broadcast_optimizer_state: {problem}")
    arriving: list[Any] = tensors if root else []
    restored = _restore(json.loads(described), arriving, root)
    for tensor in arriving:
        broadcast_(tensor, root_rank, comm=comm)
    if not root:
        optimizer.load_state_dict(restored)


def average_parameters(parameters: Any, *, comm: Communicator | None = None) -> None:
    """Replaces all floating-point tensors of `parameters` by their averages over all ranks.

    `parameters`: a module (its parameters and buffers), a state dict, or pairs (name, tensor).
    """
    found = [(name, t) for name, t in _tensors(parameters) if t.is_floating_point() or t.is_complex()]
    for name, tensor in found:
        _check(name, tensor)
    floating = [tensor.detach() for _, tensor in found]
    if floating:
        grouped_allreduce_(floating, "average", comm=default(comm))


class ModelAverager:
    """Local SGD: each rank trains a model of its own, and the models are averaged over all ranks every few steps.

        averager = ModelAverager(model, every=8)
        for batch in batches:
            ...; optimizer.step(); averager.step()

    The example averages the models after every eighth step. `every=1` is synchronous SGD, except that each rank's
    optimizer keeps a state of its own, such as momentum. All ranks must make the same number of steps. All ranks have
    to make the object at the same time, because its constructor makes a duplicate (`dup`) of `comm`. `comm`: None for
    the communicator that `collectives.init` made.
    """

    def __init__(self, parameters: Any, every: int = 1, *, warmup: int = 0, comm: Communicator | None = None) -> None:
        """`warmup`: models are averaged after each of the first `warmup` steps.

        ValueError if `every` < 1 or `warmup` < 0.
        """
        if every < 1 or warmup < 0:
            raise ValueError(f"every is {every} and warmup {warmup}: they must be at least 1 and 0")
        self._parameters: Final = parameters
        self._every: Final = every
        self._warmup: Final = warmup
        self._comm: Final = default(comm).attached()
        self.steps = 0

    def step(self) -> bool:
        """Counts a training step, and averages the models over all ranks if an average is due.

        Returns whether the models were averaged.
        """
        self.steps += 1
        due = self.steps <= self._warmup or (self.steps - self._warmup) % self._every == 0
        if due:
            average_parameters(self._parameters, comm=self._comm)
        return due

    def close(self) -> None:
        """Close the communicator that the constructor made."""
        self._comm.close()


def _check(name: str, tensor: Any) -> None:
    """Raise TypeError, which names the tensor, if the tensor cannot be written; called before anything is sent."""
    try:
        check(tensor)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def _tensors(parameters: Any) -> list[tuple[str, Any]]:
    pairs: Iterable[Any]
    if isinstance(parameters, torch.nn.Module):
        # named_parameters and named_buffers name shared tensors once, and no state that is not a tensor
        pairs = [*parameters.named_parameters(), *parameters.named_buffers()]
    elif isinstance(parameters, Mapping):
        pairs = parameters.items()
    else:
        pairs = list(parameters)
    found = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError("parameters: give a module, a state dict, or pairs as of named_parameters()")
        name, tensor = pair
        if isinstance(tensor, torch.Tensor):
            found.append((name, tensor))
    return found


def _describe(value: Any, tensors: list[Any], where: str) -> Any:
    """Return a description of `value` for JSON; the tensors in `value` are appended to `tensors`.

    `where`: the place of `value` in the state, for the TypeError if the object is not supported.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_describe(v, tensors, f"{where}[{i}]") for i, v in enumerate(value)]}
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        return {"dict": [[key, _describe(v, tensors, f"{where}[{key!r}]")] for key, v in value.items()]}
    raise TypeError(f"{where} is a {type(value).__name__}, which cannot be sent")


def _restore(described: Any, tensors: list[Any], root: bool) -> Any:
    """Return the value that `_describe` described.

    On the root `tensors` has the value's tensors; on other ranks the function appends new tensors to receive them.
    """
    ((kind, content),) = described.items()
    if kind == "value":
        return content
    if kind == "tensor":
        if root:
            return None
        made = torch.empty(content[1], dtype=getattr(torch, content[0]))
        tensors.append(made)
        return made
    if kind == "dict":
        return {key: _restore(value, tensors, root) for key, value in content}
    parts = [_restore(value, tensors, root) for value in content]
    return tuple(parts) if kind == "tuple" else parts
