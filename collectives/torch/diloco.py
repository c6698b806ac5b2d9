"""DiLoCo: local SGD whose averages are steps of a second optimizer.

Invariant: parameters are bitwise equal on all ranks after each outer step. If an exchange fails, they are as they were
before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from collectives.arrays.wire import AUTO, WireChoice, format_of
from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.torch.state import average_parameters, broadcast_parameters
from collectives.torch.tensors import writing


class DiLoCo:
    """Trains a model by DiLoCo: each rank trains alone, and every few steps all ranks make one step together.

        diloco = DiLoCo(model, every=50, wire="int8")
        for batch in batches:
            ...; optimizer.step(); diloco.step()

    In the example each rank makes 50 steps with `optimizer`. Then the ranks average how far their parameters have moved
    since the last outer step. A second optimizer, the outer one, takes the negative of this average as a gradient and
    makes one step from the parameters at the last outer step. All ranks go on from its result. So 50 steps need one
    exchange, with `wire="int8"` in a quarter of the bytes. See Douillard et al., "DiLoCo: Distributed Low-Communication
    Training of Language Models", 2023.

    All ranks must make the same number of steps. Each rank's `optimizer` keeps a state of its own. Floating-point
    buffers, such as the statistics of batch normalization, are averaged at each outer step.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        every: int,
        outer: Callable[[list[Any]], torch.optim.Optimizer] | None = None,
        *,
        wire: WireChoice | None = None,
        comm: Communicator | None = None,
    ) -> None:
        """Broadcasts the model of rank 0, so all ranks have to make the object at the same time.

        - `every`: the number of steps from one outer step to the next
        - `outer`: makes the outer optimizer for a list of tensors; by default SGD with a learning rate of 0.7 and
          Nesterov's momentum of 0.9, as in the paper. SGD with a learning rate of 1 averages the models
        - `wire`: the format in which the moves are sent, as in `Communicator.allreduce_many`; for float32 parameters
        - `comm`: None for the communicator that `collectives.init` made; the constructor makes a duplicate (`dup`)

        ValueError if `every` < 1, for an unknown wire format, and if no parameter of the model requires a gradient.
        TypeError for a parameter that is not floating point or, with a `wire` other than "auto", not float32.
        """
        if every < 1:
            raise ValueError(f"every is {every}: it must be at least 1")
        fixed = wire not in (None, AUTO)
        if fixed:
            format_of(wire)  # raises if there is no such format
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("no parameter of the model requires a gradient")
        for name, parameter in named:
            if not parameter.is_floating_point() or (fixed and parameter.dtype != torch.float32):
                wanted = f"float32, as wire={wire!r} needs" if fixed else "floating point"
                raise TypeError(f"{name} is {parameter.dtype}, not {wanted}")
        self._model: Final = model
        self._every: Final = every
        self._wire: Final = wire
        self._comm: Final = default(comm).attached()
        broadcast_parameters(model, comm=self._comm)
        self._parameters: Final = [parameter for _, parameter in named]
        self._anchors: Final = [parameter.detach().clone().requires_grad_() for parameter in self._parameters]
        self._outer: Final = (outer or _nesterov)(self._anchors)
        self.steps = 0

    def step(self) -> bool:
        """Counts a training step, and makes an outer step with all ranks if one is due. Returns whether it did."""
        self.steps += 1
        if self.steps % self._every:
            return False
        with torch.no_grad():
            moves = [anchor - parameter for anchor, parameter in zip(self._anchors, self._parameters, strict=True)]
            written = [writing(move) for move in moves]
            arrays = [array for array, _ in written]
            self._comm.allreduce_many(arrays, "avg", out=arrays, wire=self._wire)
            for _, finish in written:
                if finish is not None:
                    finish()
            average_parameters(list(self._model.named_buffers()), comm=self._comm)
            for anchor, move in zip(self._anchors, moves, strict=True):
                anchor.grad = move
        self._outer.step()
        self._outer.zero_grad()
        with torch.no_grad():
            for parameter, anchor in zip(self._parameters, self._anchors, strict=True):
                parameter.copy_(anchor)
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides the model: parameters at the last outer step, the outer optimizer's state."""
        return {
            "steps": self.steps,
            "anchors": [anchor.detach().clone() for anchor in self._anchors],
            "outer": self._outer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a `state_dict` of an object for the same model; every rank loads the same state."""
        with torch.no_grad():
            for anchor, loaded in zip(self._anchors, state["anchors"], strict=True):
                anchor.copy_(loaded)
        self._outer.load_state_dict(state["outer"])
        self.steps = state["steps"]

    def close(self) -> None:
        """Close the communicator that the constructor made."""
        self._comm.close()


def _nesterov(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
