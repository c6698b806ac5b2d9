"""Checks training with a distributed optimizer: no update of weights without an exchange of gradients.

Invariant: models without a distributed optimizer behave as before. The first call of DistributedOptimizer replaces four
methods of Keras: Model.compile, Model.fit, Model.train_on_batch, and the constructor of LossScaleOptimizer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.gradients.channel import channel
from collectives.gradients.objects import allgather_object
from collectives.keras import backends
from collectives.keras.framework import keras, updates
from collectives.keras.hook import NESTING, Hook, hook_of, wrongly_nested
from collectives.native.errors import CollectiveError, DesyncError

_POSTMORTEM: Final = 10.0  # seconds for ranks that have failed to exchange their positions

_installed: Final[list[str]] = []


def install() -> None:
    """Replaces methods of Keras by methods that check whether ranks train together.

    The methods are Model.compile, fit and train_on_batch, and LossScaleOptimizer.__init__. Only the first call of
    `install` has an effect.
    """
    if _installed:
        return
    for kind, name, replacement in (
        (keras.Model, "compile", _compile),
        (keras.Model, "fit", _fit),
        (keras.Model, "train_on_batch", _train_on_batch),
        (keras.optimizers.LossScaleOptimizer, "__init__", _scale),
    ):
        # Set on the class that defines it: Keras takes a `compile` of another class for a user's own, and does not call
        # it when it loads a model.
        owner = next(base for base in kind.__mro__ if name in vars(base))
        setattr(owner, name, _replaced(vars(owner)[name], replacement))
        _installed.append(name)


def _replaced(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, self, *args, **kwargs)

    return method


# --- the replacements


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    done = original(model, *args, **kwargs)
    if hook_of(model.optimizer) is not None and backends.current().NOT_COMPILED and model.jit_compile:
        if inspect.signature(original).bind(model, *args, **kwargs).arguments.get("jit_compile", "auto") != "auto":
            raise ValueError(backends.current().NOT_COMPILED)
        model.jit_compile = False
    return done


def _scale(original: Callable[..., Any], scaling: Any, inner_optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if hook_of(inner_optimizer) is not None:
        raise ValueError(NESTING)
    return original(scaling, inner_optimizer, *args, **kwargs)


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    distributed = _checked(model)
    if not distributed:
        return original(model, *args, **kwargs)
    given = inspect.signature(original).bind(model, *args, **kwargs)
    callbacks = given.arguments.get("callbacks")
    watch = _Watch(distributed)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        watch.set_params(callbacks.params)
        watch.set_model(model)
        callbacks.callbacks.append(watch)
    else:
        kept = [] if callbacks is None else callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        given.arguments["callbacks"] = [*kept, watch]
    try:
        with _typed(distributed):
            return original(*given.args, **given.kwargs)
    except DesyncError as error:
        watch.explain(error)
        raise
    finally:
        watch.close()
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.remove(watch)


def _train_on_batch(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    distributed = _checked(model)
    if not distributed:
        return original(model, *args, **kwargs)
    before = [one.mark() for one in distributed]
    with _typed(distributed):
        done = original(model, *args, **kwargs)
    for one, mark in zip(distributed, before, strict=True):
        one.check(mark, "this batch")
    return done


# --- helpers of the replacements


class Mark(NamedTuple):
    """How often gradients were exchanged (`calls`), and weights updated (`updates`), up to a moment of training."""

    calls: int
    updates: int


class Distributed(NamedTuple):
    """An optimizer that `DistributedOptimizer` has changed, and the object by which it exchanges gradients (`hook`)."""

    optimizer: Any
    hook: Hook

    def mark(self) -> Mark:
        return Mark(self.hook.exchange.calls, updates(self.optimizer))

    def check(self, before: Mark, when: str) -> int:
        """Returns how many times gradients were exchanged since the moment `before`; `when` names the period in errors.

        Raises RuntimeError if weights were updated more often than gradients were exchanged.
        """
        now = self.mark()
        calls, made = now.calls - before.calls, now.updates - before.updates
        if made > calls:
            raise RuntimeError(
                f"rank {self.hook.comm.rank}, {when}: optimizer {self.optimizer.name!r} has updated the weights {made} "
                f"times, but exchanged gradients {calls} times: this rank trained by itself. If the model had been "
                "trained before its optimizer was distributed, compile it again; a train_step of your own has to call "
                "the optimizer's apply or apply_gradients"
            )
        return calls


def _checked(model: Any) -> list[Distributed]:
    """The distributed optimizers in the model's attributes; ValueError if the model's settings do not allow them."""
    if wrongly_nested(getattr(model, "optimizer", None)):
        raise ValueError(NESTING)
    everything = [getattr(model, "optimizer", None), *vars(model).values()]
    found = {id(value): Distributed(value, hook) for value in everything if (hook := hook_of(value)) is not None}
    if found and backends.current().NOT_COMPILED and model.jit_compile:
        raise ValueError(backends.current().NOT_COMPILED)
    return list(found.values())


def _typed(distributed: list[Distributed]) -> ExitStack:
    stack = ExitStack()
    for one in distributed:
        stack.enter_context(backends.current().typed_errors(one.hook.exchange))
    return stack


class _Watch(keras.callbacks.Callback):
    """A callback that checks, after each epoch, that all ranks made equally many steps and exchanged their gradients.

    The check and the gradient exchanges use the same communicator. So if one rank is still training when another rank
    ends its epoch, both ranks get a DesyncError at once instead of waiting for each other.
    """

    def __init__(self, distributed: list[Distributed]) -> None:
        super().__init__()
        self._distributed = distributed
        self._hook = distributed[0].hook
        self._marks = [one.mark() for one in distributed]
        self._epoch, self._ended = 0, False
        self._aside: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        comm = channel(self._hook.comm).comm
        if comm.size == 1:
            return
        params = self.params or {}
        gathered = allgather_object(comm, [params.get("steps"), params.get("epochs")])
        for place, what in enumerate(("steps in an epoch", "epochs")):
            values = [given[place] for given in gathered if given[place] is not None]
            if len(set(values)) > 1:
                raise ValueError(
                    f"ranks differ in {what}: {_by_rank([given[place] for given in gathered])}. Give all ranks as many "
                    "batches (ds.shard, an equal steps_per_epoch), or the others would wait forever"
                )
        self._aside = comm.dup()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._ended = epoch, False
        self._marks = [one.mark() for one in self._distributed]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._ended = True
        for one, mark in zip(self._distributed, self._marks, strict=True):
            calls = one.check(mark, f"epoch {epoch}")
            if calls == 0 and one.optimizer is self.model.optimizer and self._expected():
                raise RuntimeError(
                    f"rank {self._hook.comm.rank}, epoch {epoch}: optimizer {one.optimizer.name!r} was not used, so no "
                    "gradients were exchanged: a train_step of your own has to call its apply or apply_gradients"
                )
        comm = channel(self._hook.comm).comm
        if comm.size == 1:
            return
        # Three numbers, so that it does not match the exchange's own comparison, which has four.
        steps, stops = self._steps(), bool(self.model.stop_training)
        everyones = comm.allgather(np.array([epoch, steps, stops])).tolist()
        if any(theirs[:2] != [epoch, steps] for theirs in everyones):
            raise DesyncError(f"ranks differ: {_by_rank([f'{n} steps in epoch {e}' for e, n, _ in everyones])}")
        if len({stop for *_, stop in everyones}) > 1:
            stopping = [rank for rank, (*_, stop) in enumerate(everyones) if stop]
            raise RuntimeError(
                f"epoch {epoch}: training ends on ranks {stopping} and goes on elsewhere: callbacks that stop it "
                "(EarlyStopping) have to see the same metrics on every rank, by a MetricAverageCallback before them"
            )

    def explain(self, error: DesyncError) -> None:
        """Raises a DesyncError that names each rank's epoch and step, if ranks were at different steps.

        `error`: the first DesyncError, which becomes the cause.
        """
        aside, self._aside = self._aside, None
        if aside is None:
            return
        try:
            with aside:
                gathered = allgather_object(aside, [self._epoch, self._steps(), self._ended], _POSTMORTEM)
        except CollectiveError:  # `error` is raised anyway
            return
        if any(theirs != gathered[0] for theirs in gathered):
            shown = [f"{'had ended' if end else 'was in'} epoch {epoch} after {n} steps" for epoch, n, end in gathered]
            raise DesyncError(
                f"ranks were not at the same step: {_by_rank(shown)}. Give every rank as many batches (ds.shard, an "
                f"equal steps_per_epoch). {error}"
            ) from error

    def close(self) -> None:
        if self._aside is not None:
            self._aside.close()
            self._aside = None

    def _steps(self) -> int:
        """Steps since the epoch began that ended in an exchange."""
        return (self._hook.exchange.calls - self._marks[0].calls) * self._hook.every

    def _expected(self) -> bool:
        """Whether each epoch must exchange gradients: it has enough steps, and the model has trainable weights."""
        steps = (self.params or {}).get("steps") or 1
        return bool(self.model.trainable_weights) and steps >= self._hook.every


def _by_rank(values: list[Any]) -> str:
    return ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
