"""DistributedOptimizer: any Keras optimizer, changed to use the gradients of all ranks.

Invariant: gradients are exchanged before Keras processes them (unscaling, finite checks, clipping, accumulation), so
every rank processes the same numbers. A saved model contains the original optimizer, without the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.gradients import BUCKET
from collectives.gradients.wire import Compression
from collectives.keras import backends, guard
from collectives.keras.framework import keras
from collectives.keras.hook import NESTING, Hook, attach, hook_of, wrongly_nested


def DistributedOptimizer(
    optimizer: Any,
    comm: Communicator | None = None,
    *,
    op: str = "average",
    compression: Compression | None = None,
    bucket_bytes: int = BUCKET,
    sparse_as_dense: bool = False,
    error_feedback: bool = False,
    backward_passes_per_step: int = 1,
    missing: Literal["error", "zero"] = "error",
    timeout: float | None = None,
    name: str = "",
) -> Any:
    """Changes `optimizer` so that it exchanges gradients with all ranks at every step, and returns it.

    The object keeps its state and settings; its class becomes a subclass with the same name. A model is saved and
    loaded as if its optimizer were not distributed. If `optimizer` is a name like "adam", a new optimizer is made.

    - `optimizer`: a Keras 3 optimizer; ValueError if it is distributed already. Under mixed_float16 pass a
      LossScaleOptimizer, so that all ranks skip the same steps: `DistributedOptimizer(LossScaleOptimizer(Adam()))`
    - `comm`: the communicator; None for the one that `collectives.init` made
    - `op`: how the ranks' gradients are combined: "average", "sum", "min", "max" or "prod"
    - `compression`: "fp16", "bf16", "fp8" or "int8" sends gradients in this format, of 16 or 8 bits; None sends them
      unchanged. Sparse gradients are not sent in 8 bits. "auto" takes the format that `collectives calibrate` has
      measured as fastest in such a group; None where nothing was measured
    - `bucket_bytes`: gradients are exchanged in buckets of up to this many bytes
    - `sparse_as_dense`: exchange embeddings' gradients as dense tensors; by default they stay sparse
    - `error_feedback`: add the rounding errors of `compression` to the gradients of the next step
    - `backward_passes_per_step`: with k, each rank averages the gradients of k backward passes, and exchanges the
      average
    - `missing`: what happens if a gradient is None on some ranks only. "error" raises an error on all ranks; "zero"
      replaces None by zeros
    - `timeout`: seconds for each exchange; None for the communicator's timeout
    - `name`: appears in errors, to distinguish several optimizers

    `fit` and `train_on_batch` raise PeerLost, OpTimeout and DesyncError as these types, not as errors of Keras's
    backend. They raise RuntimeError if weights were updated without an exchange of gradients. docs/keras.md has the
    details.
    """
    plain = keras.optimizers.get(optimizer)
    _check_kind(plain)
    if type(backward_passes_per_step) is not int or backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be a number from 1 up, not {backward_passes_per_step!r}")
    options = backends.Options(op, compression, bucket_bytes, sparse_as_dense, error_feedback, missing, timeout, name)
    group, backend = default(comm), backends.current()
    passes = backward_passes_per_step
    accumulate = backend.accumulate(passes, sparse_as_dense) if passes > 1 else None
    hook = Hook(group, backend.exchange(group, options), passes)
    guard.install()
    attach(plain, hook)
    # Only the object's class changes, so its slots, schedules and exclusions from weight decay stay.
    object.__setattr__(plain, "__class__", _subclass(type(plain), hook, accumulate, backend))
    return plain


def _check_kind(optimizer: Any) -> None:
    if wrongly_nested(optimizer):
        raise ValueError(NESTING)
    if hook_of(optimizer) is not None:
        raise ValueError(f"this {type(optimizer).__name__} is distributed already: wrap it once")


def _subclass(
    plain: type[Any], hook: Hook, accumulate: backends.Accumulate | None, backend: backends.Backend
) -> type[Any]:
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        unknown = trainable_variables is None and not self.built
        if hook.inside or unknown or len(grads) == 0:  # exchanged already, an error, or nothing to do
            return plain.apply(self, grads, trainable_variables)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built:  # not later: slots cannot be made in conditional code
            with keras.name_scope(self.name):
                self.build(variables)

        def step(gradients: list[Any]) -> None:
            together = hook.exchange(gradients, variables)
            with hook.exchanged(), backend.after(together):
                plain.apply(self, together, variables)

        if accumulate is None:
            return step(list(grads))
        return accumulate(list(grads), step)

    def stateless_apply(self: Any, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        together = hook.exchange(grads, self._trainable_variables)
        with hook.exchanged():
            return plain.stateless_apply(self, optimizer_variables, together, trainable_variables)

    body = {
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__doc__": plain.__doc__,
        # Keras saves the original optimizer.
        "__class__": property(lambda self: plain),
        "from_config": staticmethod(plain.from_config),
        "apply": backend.unconverted(apply),
        "stateless_apply": stateless_apply,
    }
    return type(plain.__name__, (plain,), body)
