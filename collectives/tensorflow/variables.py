"""Broadcasts variables and small objects, so that all ranks start with equal values.

Invariant: if ranks' variables differ in number, dtype or shape, every rank raises DesyncError before any variable
is changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from collectives.arrays.array import Array, check_rank
from collectives.arrays.recycle import aligned
from collectives.core import default
from collectives.core.communicator import Communicator
from collectives.gradients import encoding, objects
from collectives.gradients.channel import channel
from collectives.gradients.plan import plan
from collectives.gradients.wire import Rules
from collectives.tensorflow.bridge import Spec, call, for_sessions
from collectives.tensorflow.exchange import entry
from collectives.tensorflow.inputs import tensor_of

# The type is imported: making a tensor to get its type would fix TensorFlow's threads before users can set them.
encoding.register("tensorflow.Tensor", encoding.Codec(EagerTensor, lambda x: x.numpy(), tf.constant))


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Any, root_rank: int = 0, *, comm: Communicator | None = None, timeout: float | None = None
) -> Any:
    """Sets every rank's variables to the values that they have on rank `root_rank`.

    `variables`: variables of TensorFlow or Keras, in any nest of lists and dicts. DesyncError, on every rank, if ranks'
    variables differ in number, dtype or shape; TypeError for an unsupported dtype, like strings. In a TensorFlow 1
    graph, returns the operation that a session has to run; otherwise returns None.
    """
    found = default.default(comm)
    root = check_rank(root_rank, found.size, "root_rank")
    way = channel(found)
    owners = tf.nest.flatten(variables)
    values = [tensor_of(owner, f"variable {i}") for i, owner in enumerate(owners)]
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

    specs = [Spec(value.dtype, value.shape) for value in values]
    made = call(body, values, specs, "broadcast_variables", alone=True)
    changed = made if way.rank == root else [owner.assign(value) for owner, value in zip(owners, made, strict=True)]
    return tf.group(*changed) if for_sessions() else None


def broadcast_object(
    obj: Any = None, root_rank: int = 0, *, comm: Communicator | None = None, timeout: float | None = None
) -> Any:
    """Returns the object `obj` of rank `root_rank` on every rank; the `obj` of other ranks is ignored.

    None, bool, int, float, complex, str, bytes, arrays and tensors are supported, and lists, tuples, dicts and sets of
    them. Objects keep their types. TypeError on the root for any other object, and Aborted on the other ranks.
    """
    return objects.broadcast_object(channel(default.default(comm)).comm, obj, root_rank, timeout)


def allgather_object(obj: Any, *, comm: Communicator | None = None, timeout: float | None = None) -> list[Any]:
    """Returns a list of every rank's object `obj`, in rank order.

    `broadcast_object` describes which objects are supported, and the errors for others.
    """
    return objects.allgather_object(channel(default.default(comm)).comm, obj, timeout)
