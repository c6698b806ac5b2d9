"""What all ranks begin with: variables and small objects of one rank.

Invariant: where ranks' variables differ in number, dtype or shape, every rank raises before anything is changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from collectives import default
from collectives.arrays import Array, check_rank
from collectives.communicator import Communicator
from collectives.gradients import objects
from collectives.gradients.channel import channel
from collectives.gradients.plan import plan
from collectives.gradients.wire import Rules
from collectives.recycle import aligned
from collectives.tensorflow.bridge import Spec, call
from collectives.tensorflow.exchange import entry


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Any, root_rank: int = 0, *, comm: Communicator | None = None, timeout: float | None = None
) -> None:
    """Give every rank's variables, in any nest of lists and dicts, the values that they have on the root.

    TensorFlow's and Keras's variables. DesyncError, on every rank, where they differ in number, dtype or shape;
    TypeError for a dtype that cannot travel, like strings.
    """
    found = default.default(comm)
    root = check_rank(root_rank, found.size, "root_rank")
    way = channel(found)
    owners = tf.nest.flatten(variables)
    values = [tf.convert_to_tensor(owner) for owner in owners]
    agreed = plan(Rules(op="sum"), tuple(map(entry, values, owners)), found.size)

    def sent(array: Array) -> Array:
        copy = aligned(array.shape, array.dtype)
        if way.rank == root:
            np.copyto(copy, array)
        way.comm.broadcast(copy, root, timeout=timeout)
        return copy

    def body(*arrays: Array) -> list[Array]:
        way.agree(agreed, 0, timeout)
        return [sent(array) for array in arrays]

    made = call(body, values, [Spec(value.dtype, value.shape) for value in values], "broadcast_variables")
    if way.rank == root:
        return
    for owner, value in zip(owners, made, strict=True):
        owner.assign(value)


def broadcast_object(
    obj: Any = None, root_rank: int = 0, *, comm: Communicator | None = None, timeout: float | None = None
) -> Any:
    """The root's object, on every rank; others' are not looked at.

    bytes, or None, bool, int, float, str, and lists and dicts of them with str keys; tuples arrive as lists.
    TypeError on the root for anything else, and Aborted on the others.
    """
    return objects.broadcast_object(channel(default.default(comm)).comm, obj, root_rank, timeout)


def allgather_object(obj: Any, *, comm: Communicator | None = None, timeout: float | None = None) -> list[Any]:
    """Every rank's object, in rank order. What can travel, and errors: see `broadcast_object`."""
    return objects.allgather_object(channel(default.default(comm)).comm, obj, timeout)
