"""Model averaging: each rank trains a replica alone, on its own data, and ranks average weights at intervals.

Invariant: after an average, and after training, weights are bitwise equal on all ranks. If ranks are not at the same
step, all ranks raise an error instead of averaging weights of different steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.gradients.objects import allgather_object
from collectives.keras.framework import keras, read, settle
from collectives.keras.hook import hook_of
from collectives.keras.state import check_same, slots_of
from collectives.native.errors import DesyncError


class ModelAveragingCallback(keras.callbacks.Callback):
    """A Keras callback that averages the model's weights over all ranks every few steps, and when training ends.

    `every`: the number of steps from one average to the next. `every=1` with SGD, with or without momentum, is
    synchronous SGD. A larger number is local SGD: less data is sent, and the ranks' models differ between averages.
    Weights that are not floating point are set to those of rank 0. With `slots` the optimizer's floating-point state
    (momentum) is averaged as well; by default each rank keeps its own state.

    Put BroadcastGlobalVariablesCallback before this callback, so that all ranks begin with the same weights. ValueError
    if the optimizer is a DistributedOptimizer, or if ranks have different numbers of steps in an epoch. ValueError if
    `every` is no multiple of the model's steps_per_execution, because Keras calls callbacks only after so many steps.
    DesyncError on all ranks if ranks have made different numbers of steps.
    """

    def __init__(self, every: int = 1, *, slots: bool = False, comm: Communicator | None = None) -> None:
        super().__init__()
        if type(every) is not int or every < 1:
            raise ValueError(f"every must be a number of steps from 1 up, not {every!r}")
        self.every = every
        self.averages = 0  # averages so far
        self._slots = slots
        self._comm = comm
        self._epoch = self._since = self._steps = self._in_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._comm = default(self._comm)
        model = self.model
        if hook_of(model.optimizer) is not None:
            raise ValueError(
                "ModelAveragingCallback needs a plain optimizer: a DistributedOptimizer averages gradients"
            )
        at_once = model.steps_per_execution
        if self.every % at_once:
            raise ValueError(
                f"every={self.every} steps cannot be kept with steps_per_execution={at_once}: use a multiple of it"
            )
        lengths = allgather_object(self._comm, (self.params or {}).get("steps"))
        if len(set(lengths)) > 1:
            reported = ", ".join(f"rank {rank} has {steps}" for rank, steps in enumerate(lengths))
            raise ValueError(f"epochs differ in steps: {reported}; give `fit` the same steps_per_epoch on every rank")
        self._since = self._steps = 0
        if model.built:
            check_same(self._comm, self._variables())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._in_epoch = epoch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # `batch` is the last batch of an execution of several steps. The last execution of an epoch may have fewer.
        end = min(batch + 1, (self.params or {}).get("steps") or batch + 1)
        made, self._in_epoch = end - self._in_epoch, end
        self._steps += made
        self._since += made
        if self._since >= self.every:
            self._average()

    def on_train_end(self, logs: Any = None) -> None:
        if self._since:
            self._average()

    def _variables(self) -> list[Any]:
        slots = slots_of(self.model.optimizer, self.model.trainable_variables) if self._slots else []
        return [*self.model.weights, *(v for v in slots if _is_floating(v) and v.shape)]

    def _average(self) -> None:
        comm = default(self._comm)
        settle(self.model)
        variables = self._variables()
        floating = [v for v in variables if _is_floating(v)]
        others = [v for v in variables if not _is_floating(v)]
        steps = comm.allgather(np.array(self._steps)).tolist()
        if len(set(steps)) > 1:
            reported = ", ".join(f"rank {rank} has made {made}" for rank, made in enumerate(steps))
            raise DesyncError(
                f"epoch {self._epoch}: weights of different steps: {reported}; give every rank the same number "
                "of batches, by steps_per_epoch"
            )
        self._combine(comm, floating)
        for variable in others:
            variable.assign(comm.broadcast(np.array(read(variable)), 0))
        self._since = 0
        self.averages += 1

    def _combine(self, comm: Communicator, variables: list[Any]) -> None:
        """Give these floating-point variables the same values on all ranks."""
        values = comm.allreduce_many([read(v) for v in variables], "avg")
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _is_floating(variable: Any) -> bool:
    return "float" in keras.backend.standardize_dtype(variable.dtype)
