"""Collectives for data-parallel training: gradients, parameters and metrics, as trees of arrays.

Invariant: exchanged results are bitwise equal on all ranks. If the trees' names, shapes or dtypes differ between ranks,
all ranks raise an error before any data is exchanged.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import numpy as jnp

from collectives.calls.fusion import BUCKET
from collectives.core.communicator import Communicator
from collectives.jax._channel import channel_of
from collectives.jax._ops import allreduce, broadcast


def allreduce_gradients(
    gradients: Any, op: str = "avg", *, comm: Communicator | None = None, bucket_bytes: int = BUCKET
) -> Any:
    """Returns the average (or another reduction `op`) of all ranks' gradients, a pytree like `gradients`.

    Small arrays are joined into buckets of `bucket_bytes` bytes, which are reduced together. If ranks pass different
    pytrees, every rank raises a DesyncError that names the arrays that differ.
    """
    return allreduce([gradients], op, comm=comm, bucket_bytes=bucket_bytes)[0]


def broadcast_parameters(parameters: Any, root_rank: int = 0, *, comm: Communicator | None = None) -> Any:
    """Returns the `parameters` (a pytree) of rank `root_rank` on every rank.

    Call it when training starts, and after loading a checkpoint. If ranks pass different pytrees, every rank raises a
    DesyncError that names the arrays that differ.
    """
    return broadcast([parameters], root_rank, comm=comm)[0]


def average_metrics(metrics: Any, weight: Any = 1.0, *, comm: Communicator | None = None) -> Any:
    """Returns the weighted average of all ranks' metrics, a pytree of floating-point arrays like `metrics`.

    `weight`: this rank's number of samples, if ranks have different numbers of samples.
    """
    weight = jnp.asarray(weight, jnp.float32)
    scaled = jax.tree.map(lambda metric: jnp.asarray(metric) * weight, metrics)
    sums, total = allreduce((scaled, weight), comm=comm)
    return jax.tree.map(lambda x: x / total, sums)


def average_parameters(parameters: Any, step: Any = 0, every: int = 1, *, comm: Communicator | None = None) -> Any:
    """Local SGD: returns the average of all ranks' parameters if `every` divides `step`, else this rank's parameters.

    `parameters` is a pytree; its arrays of integers and booleans are not averaged. `step` is the number of the current
    step, from 1, equal on all ranks: an int, or an array inside compiled functions.
    """
    if every < 1:
        raise ValueError(f"every is {every}: it has to be 1 or more")
    arrays = jax.tree.map(jnp.asarray, parameters)
    moving = jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.inexact) else None, arrays)

    def average(own: Any) -> Any:
        return allreduce([own], "avg", comm=comm)[0]

    if isinstance(step, int):
        moved = average(moving) if step % every == 0 else moving
    else:
        channel_of(comm)  # here, since making a channel is collective and must not be conditional
        moved = jax.lax.cond(step % every == 0, average, lambda own: own, moving)
    return jax.tree.map(lambda new, x: x if new is None else new, moved, arrays, is_leaf=lambda x: x is None)
