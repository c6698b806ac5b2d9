"""Horovod's functions that exchange variables and objects, or return ranks and sizes as tensors.

Invariant: names and arguments are Horovod's. In a graph of TensorFlow 1, an operation runs only when a session runs the
returned value, as in Horovod.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

import collectives.tensorflow as hooks
from collectives.horovod import common, objects, process_sets
from collectives.horovod.options import check_devices, hint
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.tensorflow.bridge import for_sessions

_NO_SESSIONS: Final = "objects travel without TensorFlow: session is not used"


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Any, root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Sets every rank's variables, of TensorFlow or Keras, to the values that they have on rank `root_rank`.

    `inplace` saves memory in Horovod; here it has no effect. DesyncError on every rank if shapes or dtypes of variables
    differ between ranks. Returns None; in a graph of TensorFlow 1, the operation that a session has to run.
    """
    group, root = process_set.group(), process_set.root(root_rank)
    return hooks.broadcast_variables(list(variables), root, comm=group)


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Sets every rank's variables to the values that they have on rank `root_rank`, and returns the variables.

    In a graph of TensorFlow 1, returns tensors of the variables' new values instead. Errors are those of
    `broadcast_variables`.
    """
    found = list(variables)
    done = broadcast_variables(found, root_rank, process_set)
    if done is None:
        return found
    with tf.control_dependencies([done]):
        return [tf.identity(variable.read_value()) for variable in found]


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns an operation that sets all global variables of a TensorFlow 1 graph to their values on rank `root_rank`.

    Raises RuntimeError in eager execution, as Horovod does: TensorFlow 2 has no global variables.
    """
    if for_sessions():
        return broadcast_variables(tf.compat.v1.global_variables(), root_rank)
    raise RuntimeError(
        "hvd.broadcast_global_variables() does not support eager execution. Please use "
        "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
    )


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """A hook for TensorFlow 1 sessions that sets global variables to the root's values when the session begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        check_devices(device)
        self._root: Final = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            self._operation = broadcast_global_variables(self._root)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._operation)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object `obj` of rank `root_rank` on every rank.

    `collectives.tensorflow.broadcast_object` describes which objects are supported. `session` has no effect.
    """
    hint(session is not None, _NO_SESSIONS)
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function f: f(obj) calls broadcast_object(obj, ...) with the arguments given to this function."""
    hint(session is not None, _NO_SESSIONS)
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns a list of every rank's object `obj`, in rank order.

    `collectives.tensorflow.broadcast_object` describes which objects are supported. `session` has no effect.
    """
    hint(session is not None, _NO_SESSIONS)
    return objects.allgather_object(obj, name, process_set)


# --- rank numbers and sizes as tensors; constants, because they don't change while a graph lives


def rank_op(name: str | None = None) -> Any:
    return tf.constant(common.rank(), tf.int32, name=name or "rank")


def local_rank_op(name: str | None = None) -> Any:
    return tf.constant(common.local_rank(), tf.int32, name=name or "local_rank")


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    return tf.constant(process_sets.of(process_set_id).size(), tf.int32, name=name or "size")


def local_size_op(name: str | None = None) -> Any:
    return tf.constant(common.local_size(), tf.int32, name=name or "local_size")


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 if this rank is in the process set (set of ranks) with the number `process_set_id`, else 0."""
    return tf.constant(int(bool(process_sets.of(process_set_id).included())), tf.int32, name=name or "included")
