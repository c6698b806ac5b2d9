"""Horovod's callbacks for Keras 3.

Invariant: names, arguments and defaults are Horovod's; collectives.keras.callbacks has the implementation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from collectives.horovod import world
from collectives.horovod.exchange import LocalVariables
from collectives.horovod.options import check_devices
from collectives.keras import callbacks
from collectives.keras.framework import innermost
from collectives.keras.state import broadcast_variables, slots_of


class BroadcastGlobalVariablesCallback(callbacks.BroadcastGlobalVariablesCallback):
    """A Keras callback that sets all ranks' weights and optimizer variables to the root's when training begins.

    `local_variables` are left as they are on each rank. If a model has no weights before its first batch, its weights
    are set after this batch.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__(root_rank, world.current().comm)
        check_devices(device)
        self._local = LocalVariables()
        self._local.add(*(local_variables or ()))

    def register_local_var(self, var: Any) -> None:
        """Excludes the variable `var` from the broadcast: it is left as it is on each rank."""
        self._local.add(var)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._local:
            super().on_train_begin(logs)
        elif self.model.built:
            self._send_others()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._local:
            super().on_train_batch_end(batch, logs)
        elif not self._done:
            self._send_others()

    def _send_others(self) -> None:
        self._done = True
        weights = [weight for weight in self.model.weights if weight not in self._local]
        slots = slots_of(self.model.optimizer, self.model.trainable_variables)
        broadcast_variables([*weights, *slots], self._root, self._comm)


class MetricAverageCallback(callbacks.MetricAverageCallback):
    """A Keras callback that replaces an epoch's metrics by their means over all ranks.

    Put it before callbacks that use metrics, such as EarlyStopping.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__(world.current().comm)
        check_devices(device)


class LearningRateScheduleCallback(callbacks.LearningRateScheduleCallback):
    """A Keras callback that sets the learning rate to `initial_lr * multiplier(epoch)`.

    The callback acts from `start_epoch` up to, but not including, `end_epoch`. If `multiplier` is a number, the rate is
    `initial_lr * multiplier ** (epoch - start_epoch)`. There is no momentum correction: `momentum_correction=True`
    causes a warning if the optimizer has momentum.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        schedule = multiplier if callable(multiplier) else _decay(multiplier, start_epoch)
        super().__init__(initial_lr, schedule, start_epoch, end_epoch, staircase, steps_per_epoch=steps_per_epoch)
        self._corrects = momentum_correction

    def on_train_begin(self, logs: Any = None) -> None:
        _warn_of_momentum(self.model, self._corrects)
        super().on_train_begin(logs)


class LearningRateWarmupCallback(callbacks.LearningRateWarmupCallback):
    """A Keras callback that raises the learning rate from `initial_lr / size` to `initial_lr`, batch by batch.

    The warmup takes `warmup_epochs` epochs. `size` is the number of ranks. There is no momentum correction:
    `momentum_correction=True` causes a warning if the optimizer has momentum.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        comm = world.current().comm
        super().__init__(initial_lr, warmup_epochs, steps_per_epoch=steps_per_epoch, verbose=verbose, comm=comm)
        self._corrects = momentum_correction

    def on_train_begin(self, logs: Any = None) -> None:
        _warn_of_momentum(self.model, self._corrects)
        super().on_train_begin(logs)


class BestModelCheckpoint(callbacks.BestModelCheckpoint):
    """A Keras callback that saves the best model so far, on rank 0 only. Put it after MetricAverageCallback.

    ValueError without `filepath`: Horovod's Spark estimators set the path, but this library has no such estimators.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        if filepath is None:
            raise ValueError(
                "there are no Spark estimators here, which would fill in the path: BestModelCheckpoint("
                "filepath='best.keras', ...)"
            )
        super().__init__(
            filepath,
            monitor,
            comm=world.current().comm,
            verbose=verbose,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )


def _decay(base: float, start: int) -> Callable[[float], float]:
    return lambda epoch: float(base ** (epoch - start))


def _warn_of_momentum(model: Any, corrects: bool) -> None:
    if corrects and getattr(innermost(model.optimizer), "momentum", None):
        warnings.warn(
            "momentum is a constant of the compiled step in Keras 3, so it is not corrected while the learning rate "
            "changes; momentum_correction=False confirms this",
            UserWarning,
            stacklevel=2,
        )
