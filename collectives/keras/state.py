"""Makes a model's weights and its optimizer's slots (state variables) the same on all ranks.

Invariant: nothing is overwritten before every rank knows that all ranks have variables of the same shapes and dtypes in
the same order. Names are ignored: a variable may have different names in different processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from collectives.arrays.array import Array
from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.gradients.objects import allgather_object
from collectives.keras.framework import keras, read
from collectives.native.errors import ConfigMismatch

_CHUNK: Final = 64 << 20  # bytes sent at a time, so that a large model is not in memory twice


def broadcast_global_variables(model: Any, root_rank: int = 0, comm: Communicator | None = None) -> None:
    """Overwrites every rank's weights of `model`, and its optimizer's variables, with those of rank `root_rank`.

    The model has to be built; the optimizer's variables are made if there are none. States of random number generators
    are not broadcast, so that dropout differs between ranks. If variables differ between ranks in shape or dtype,
    nothing is overwritten, and all ranks raise ConfigMismatch.
    """
    if not model.built:
        raise ValueError(
            f"model {model.name!r} has no weights yet: build it first (keras.Input as its first layer, or "
            "model.build(input_shape)), or use BroadcastGlobalVariablesCallback, which waits for them"
        )
    optimizer = getattr(model, "optimizer", None)
    slots = [] if optimizer is None else slots_of(optimizer, model.trainable_variables)
    broadcast_variables([*model.weights, *slots], root_rank, comm)


def slots_of(optimizer: Any, trainable: Sequence[Any]) -> list[Any]:
    """Returns all variables of `optimizer`, such as momentum and learning rate.

    If the optimizer has not made them yet, makes them for the weights `trainable` first.
    """
    if not optimizer.built:
        with keras.name_scope(optimizer.name):
            optimizer.build(list(trainable))
    return list(optimizer.variables)


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0, comm: Communicator | None = None) -> None:
    """Overwrites these Keras variables with those of rank `root_rank`.

    Raises ConfigMismatch on all ranks if shapes or dtypes differ between ranks.
    """
    comm = default(comm)
    if not 0 <= root_rank < comm.size:
        raise ValueError(f"root_rank must be from 0 to {comm.size - 1}, not {root_rank}")
    check_same(comm, variables, root_rank)
    if comm.size == 1:
        return
    for chunk in _chunks(variables):
        values = [read(v) for v in chunk]
        packed = np.concatenate([value.reshape(-1).view(np.uint8) for value in values])
        comm.broadcast(packed, root_rank)
        for variable, value in zip(chunk, _unpacked(packed, values), strict=True):
            variable.assign(value)


def check_same(comm: Communicator, variables: Sequence[Any], root_rank: int = 0) -> None:
    """Raises ConfigMismatch on all ranks if a rank's variables differ in shape or dtype from those of rank `root_rank`.

    The error names the first difference.
    """
    mine = [(_name(v), list(v.shape), keras.backend.standardize_dtype(v.dtype)) for v in variables]
    everyones = allgather_object(comm, mine)
    for rank, theirs in enumerate(everyones):
        for i in range(max(len(theirs), len(everyones[root_rank]))):
            one, other = (side[i] if i < len(side) else None for side in (theirs, everyones[root_rank]))
            if one is None or other is None or one[1:] != other[1:]:
                raise ConfigMismatch(
                    f"the models differ: variable {i} is {_shown(one)} on rank {rank} and {_shown(other)} on rank "
                    f"{root_rank}; build the same model with the same optimizer on every rank"
                )


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


def _shown(found: Any) -> str:
    return "not there" if found is None else f"{found[0]!r} {found[2]}{found[1]}"


def _chunks(variables: Sequence[Any]) -> list[list[Any]]:
    found: list[list[Any]] = [[]]
    held = 0
    for variable in variables:
        nbytes = math.prod(variable.shape) * 8
        if found[-1] and held + nbytes > _CHUNK:
            found.append([])
            held = 0
        found[-1].append(variable)
        held += nbytes
    return [chunk for chunk in found if chunk]


def _unpacked(packed: Array, like: Sequence[Array]) -> list[Array]:
    ends = np.cumsum([value.nbytes for value in like]).tolist()
    parts = zip([0, *ends[:-1]], ends, like, strict=True)
    # Each part is copied: it may begin at any byte, and a view needs its dtype's alignment.
    return [np.array(packed[start:end]).view(v.dtype).reshape(v.shape) for start, end, v in parts]
