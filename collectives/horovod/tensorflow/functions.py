"""Variables, objects and numbers of ranks; what belongs to TensorFlow 1's sessions raises.

Invariant: names and arguments are Horovod's.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import tensorflow as tf

import collectives.tensorflow as hooks
from collectives.horovod import common, objects, process_sets
from collectives.horovod.options import check_devices, hint
from collectives.horovod.process_sets import ProcessSet, global_process_set

_NO_SESSIONS: Final = "there are no sessions in TensorFlow 2: session is not used"


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Any, root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> None:
    """Give every rank's variables the values that they have on the root. Keras's variables, too.

    `inplace` saves memory in Horovod; here it changes nothing. DesyncError on every rank where variables differ.
    """
    group, root = process_set.group(), process_set.root(root_rank)
    hooks.broadcast_variables(list(variables), root, comm=group)


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """`broadcast_variables`; returns the variables."""
    found = list(variables)
    broadcast_variables(found, root_rank, process_set)
    return found


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """TensorFlow 2 has no global variables: RuntimeError, as Horovod raises where execution is eager."""
    raise RuntimeError(
        "hvd.broadcast_global_variables() does not support eager execution. Please use "
        "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
    )


class BroadcastGlobalVariablesHook:
    """A hook of TensorFlow 1's sessions: NotImplementedError."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        check_devices(device)
        raise NotImplementedError(
            "BroadcastGlobalVariablesHook is for sessions of TensorFlow 1: use hvd.broadcast_variables, or with Keras "
            "hvd.callbacks.BroadcastGlobalVariablesCallback"
        )


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object, on every rank: bytes or what JSON can say. TypeError for anything else."""
    hint(session is not None, _NO_SESSIONS)
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(*args: Any, **kwargs: Any) -> NoReturn:
    """For sessions of TensorFlow 1: NotImplementedError."""
    raise NotImplementedError("broadcast_object_fn is for sessions of TensorFlow 1: use hvd.broadcast_object")


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, in rank order: bytes or what JSON can say. TypeError for anything else."""
    hint(session is not None, _NO_SESSIONS)
    return objects.allgather_object(obj, name, process_set)


# --- numbers as tensors; they are constants, for ranks don't change while a graph lives


def rank_op(name: str | None = None) -> Any:
    return tf.constant(common.rank(), tf.int32, name=name or "rank")


def local_rank_op(name: str | None = None) -> Any:
    return tf.constant(common.local_rank(), tf.int32, name=name or "local_rank")


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    return tf.constant(process_sets.of(process_set_id).size(), tf.int32, name=name or "size")


def local_size_op(name: str | None = None) -> Any:
    return tf.constant(common.local_size(), tf.int32, name=name or "local_size")


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 where this rank is in that set, else 0."""
    return tf.constant(int(bool(process_sets.of(process_set_id).included())), tf.int32, name=name or "included")
