"""Collectives for data-parallel training: gradients, parameters and metrics, as trees.

Invariant: all ranks get the same bits. Trees that differ between ranks are detected before they are used.
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
    """The average (or another `op`) of every rank's gradients: a tree like `gradients`.

    The arrays of a tree are joined into buckets of `bucket_bytes`. DesyncError on every rank, naming arrays, if ranks
    pass different trees.
    """
    return allreduce([gradients], op, comm=comm, bucket_bytes=bucket_bytes)[0]


def broadcast_parameters(parameters: Any, root_rank: int = 0, *, comm: Communicator | None = None) -> Any:
    """`parameters` of rank `root_rank`, on every rank. Called when training starts, and after loading a checkpoint.

    DesyncError on every rank, naming arrays, if ranks pass different trees.
    """
    return broadcast([parameters], root_rank, comm=comm)[0]


def average_metrics(metrics: Any, weight: Any = 1.0, *, comm: Communicator | None = None) -> Any:
    """The weighted average of all ranks' metrics: a tree like `metrics`, of floating-point arrays.

    Pass this rank's number of samples as `weight` if ranks have different numbers of samples.
    """
    weight = jnp.asarray(weight, jnp.float32)
    scaled = jax.tree.map(lambda metric: jnp.asarray(metric) * weight, metrics)
    sums, total = allreduce((scaled, weight), comm=comm)
    return jax.tree.map(lambda x: x / total, sums)


def average_parameters(parameters: Any, step: Any = 0, every: int = 1, *, comm: Communicator | None = None) -> Any:
    """Local SGD: at every `every`th step the average of all ranks' parameters, else this rank's parameters.

    `step` counts from 1, the same on every rank; an int, or an array inside compiled functions. Integers and booleans
    in the tree stay as they are.
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
