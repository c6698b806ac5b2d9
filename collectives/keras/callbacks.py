"""Callbacks for `fit` on several ranks: equal weights at the start, equal metrics, and schedules of learning rates.

Invariant: a callback communicates with other ranks only at events that every rank reaches equally often. All ranks
have to pass the same callbacks in the same order. Callbacks that Horovod has too have Horovod's names and arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.gradients.objects import allgather_object
from collectives.keras.averaging import ModelAveragingCallback
from collectives.keras.framework import innermost, keras, settle
from collectives.keras.state import broadcast_global_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ModelAveragingCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """A Keras callback that sets all ranks' weights and optimizer variables to those of rank `root_rank`.

    The callback does so when training begins. A model that is not built has no weights at that time. Its weights are
    set after the first batch instead, so other ranks lose what they learned from this batch. To avoid this loss, build
    the model before `fit`. Errors are those of `broadcast_global_variables`.
    """

    def __init__(self, root_rank: int = 0, comm: Communicator | None = None) -> None:
        super().__init__()
        self._root = root_rank
        self._comm = comm
        self._done = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._done = self.model.built
        if self._done:
            broadcast_global_variables(self.model, self._root, self._comm)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._done:
            self._done = True
            broadcast_global_variables(self.model, self._root, self._comm)


class MetricAverageCallback(keras.callbacks.Callback):
    """A Keras callback that replaces an epoch's metrics by their means over all ranks.

    Put it before callbacks that use metrics (EarlyStopping, ReduceLROnPlateau, BestModelCheckpoint), so that they
    decide the same on all ranks. All ranks have the same weight in the mean, whatever their numbers of samples.
    ValueError on all ranks if the names of the metrics differ between ranks.
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        super().__init__()
        self._comm = comm

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None:
            return
        mine = {name: float(value) for name, value in logs.items() if _is_number(value)}
        everyones = allgather_object(default(self._comm), mine)
        for rank, theirs in enumerate(everyones):
            if theirs.keys() != mine.keys():
                raise ValueError(
                    f"epoch {epoch}: rank {rank} has the metrics {sorted(theirs)}, this rank {sorted(mine)}: compile "
                    "the same metrics, and validate, on every rank"
                )
        for name in mine:
            logs[name] = math.fsum(theirs[name] for theirs in everyones) / len(everyones)


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """A Keras callback that sets the learning rate to `initial_lr * multiplier(epoch)`.

    The callback acts from `start_epoch` up to, but not including, `end_epoch`. `multiplier` is a number, or a function
    of the epoch. With `staircase` the function is called once an epoch. Without `staircase` it is called with a
    fractional epoch before each batch, or before each execution of several batches (Keras's steps_per_execution). Pass
    `steps_per_epoch` if `fit` does not know the number of steps in an epoch. Every rank computes the same rate; nothing
    is sent. `momentum_correction` raises ValueError, because Keras 3 compiles an optimizer's momentum into the step.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = False,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if momentum_correction:
            raise ValueError("momentum is a constant of the compiled step in Keras 3: leave momentum_correction False")
        self._initial = float(initial_lr)
        self._multiplier = multiplier if callable(multiplier) else _constant(multiplier)
        self._start, self._end = start_epoch, math.inf if end_epoch is None else end_epoch
        self._staircase = staircase
        self._steps = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        steps = self._steps or (self.params or {}).get("steps")
        if not self._staircase and not steps:
            raise ValueError(f"{type(self).__name__} without staircase needs steps_per_epoch: this data has no length")
        self._steps = steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self._staircase:
            self._set(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._staircase:
            assert self._steps is not None
            self._set(self._epoch + batch / self._steps)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        if self._start <= epoch < self._end:
            settle(self.model)
            innermost(self.model.optimizer).learning_rate = self._initial * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """A Keras callback that raises the learning rate from `initial_lr / size` to `initial_lr`, batch by batch.

    The warmup takes `warmup_epochs` epochs. `size` is the number of ranks. `initial_lr` is the rate for training on all
    ranks, often `size` times the rate for one process. With `verbose`, rank 0 prints a line at the end of the warmup.
    The method is from P. Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = False,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        comm: Communicator | None = None,
    ) -> None:
        if not warmup_epochs > 0:
            raise ValueError(f"warmup_epochs must be more than 0, not {warmup_epochs}")
        super().__init__(
            initial_lr,
            self._way_up,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._warmup = warmup_epochs
        self._comm = comm
        self._verbose = verbose
        self._size = 1

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._size = default(self._comm).size

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._verbose and epoch + 1 == math.ceil(self._warmup) and default(self._comm).rank == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate is {self._initial:g} now, that for {self._size} ranks")

    def _set(self, epoch: float) -> None:
        assert self._steps is not None
        # The last batch of the warmup already has the full rate; after it no rate is set.
        if epoch < self._warmup:
            super()._set(epoch + 1 / self._steps)

    def _way_up(self, epoch: float) -> float:
        return 1 / self._size + (1 - 1 / self._size) * min(1.0, epoch / self._warmup)


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """A ModelCheckpoint of Keras with `save_best_only=True`. Only rank 0 writes files.

    Put it after MetricAverageCallback; otherwise the metrics of rank 0 alone decide which model is the best.
    """

    def __init__(
        self, filepath: Any, monitor: str = "val_loss", *, comm: Communicator | None = None, **options: Any
    ) -> None:
        super().__init__(filepath, monitor=monitor, **{"save_best_only": True, **options})
        self._comm = comm

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._writes:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._writes:
            super().on_epoch_end(epoch, logs)

    @property
    def _writes(self) -> bool:
        return default(self._comm).rank == 0


def _constant(value: float) -> Callable[[float], float]:
    return lambda epoch: value


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
