"""hvd.join: a rank without data left takes part in the others' allreduces and optimizer steps with zeros.

Every rank announces the operation that it is about to call, in a small allgather before it, so that a rank that has
joined knows what to send. Announcements run in the background: a rank with data waits for them when it waits for the
operation's result.

Invariant: only operations of `global_process_set`, the set of all ranks, are announced, through its communicator and in
the order of the calls. A rank that has joined changes none of its own tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from collectives.arrays.array import dtype_names
from collectives.core.communicator import Communicator
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.native.errors import DesyncError
from collectives.torch.functions import grouped_allreduce, op_name
from collectives.torch.tensors import reading

_WORDS: Final = 64  # words of 8 bytes in each message of an announcement
_FIXED: Final = 4  # words before those about tensors: state, kind of call, op or optimizer, how many words follow
_ACTIVE, _JOINED = 0, 1
_ALLREDUCE, _STEP = range(2)
_OPS: Final = ("avg", "sum", "max", "min", "prod")
_ADDITIVE: Final = ("avg", "sum")
_DTYPES: Final = tuple(dtype_names())
_NUMBERS: Final = {name: number for number, name in enumerate(dtype_names().values())}

_optimizers: Final[list[weakref.ref[Any]]] = []  # in the order in which they were made, which is the same on every rank
_world: list[weakref.ref[Communicator]] = []  # at most one: the communicator of `_optimizers`


class Announcement:
    """A message in progress to ranks that have called `hvd.join`.

    The message names the next call, in which these ranks take part.
    """

    def __init__(self, works: Sequence[Any]) -> None:
        self._works: Final = works

    def done(self) -> bool:
        return all(work.done() for work in self._works)

    def wait(self) -> list[int]:
        """Waits until all ranks know which call follows; returns the ranks that have called `hvd.join`."""
        found = [work.result() for work in self._works]
        return np.flatnonzero(found[0][:, 0] == _JOINED).tolist() if found else []


def announce_allreduce(process_set: ProcessSet, op: str, tensors: Sequence[Any]) -> Announcement:
    """Tells the ranks that have called `hvd.join` that an allreduce of `tensors` follows, in which they take part.

    Returns a handle of this message. These ranks can send only zeros, which would change the result of any op but sum
    and average. For such an op, raises DesyncError on every rank if a rank has called `join`.
    """
    op = op_name(op)
    made = _announced(process_set, _ALLREDUCE, _OPS.index(op), [word for x in tensors for word in _form(x)])
    if op not in _ADDITIVE:
        joined = made.wait()
        if joined:
            raise DesyncError(_cannot(op, joined))
    return made


def register(optimizer: Any, process_set: ProcessSet) -> None:
    """Makes `optimizer` announce each training step, so that ranks that have called `hvd.join` take part in it.

    `optimizer`: made by `collectives.torch.DistributedOptimizer`.
    """
    if process_set is not global_process_set:
        return
    comm = process_set.group()
    if not _world or _world[0]() is not comm:
        _world[:] = [weakref.ref(comm)]
        _optimizers.clear()
    number = len(_optimizers)
    _optimizers.append(weakref.ref(optimizer))

    def announce() -> Announcement:
        return _announced(process_set, _STEP, number, [])

    optimizer._announce = announce


def join(device: int = -1) -> int:
    """For a rank without data left: takes part in other ranks' calls with zeros until all ranks call `join`.

    Returns the number of the rank that called `join` last. Averages still divide by the number of all ranks. Meanwhile
    the other ranks may call any form of allreduce with Average or Sum, and `step` of optimizers; DesyncError if a rank
    calls anything else. RuntimeError between backward() and step(). `device` has no effect.
    """
    comm = global_process_set.group()
    made = [optimizer() for optimizer in _optimizers]
    if any(optimizer is not None and optimizer._flights for optimizer in made):
        raise RuntimeError("hvd.join() between backward() and step(): gradients are still being averaged")
    rounds = 0
    while True:
        everyones = comm.allgather(_message([_JOINED, rounds]))
        active = np.flatnonzero(everyones[:, 0] == _ACTIVE)
        if not active.size:
            waited = everyones[:, 1].tolist()
            return max(rank for rank, count in enumerate(waited) if count == min(waited))
        _take_part(comm, everyones, active.tolist())
        rounds += 1


def _take_part(comm: Communicator, everyones: Any, active: list[int]) -> None:
    reported = everyones[active[0]]
    if not (everyones[active] == reported).all():
        raise DesyncError(f"ranks {active} have not joined, and call different operations, or with different tensors")
    _, what, number, count = reported[:_FIXED].tolist()
    if what == _ALLREDUCE:
        words = [reported[_FIXED:]]
        for _ in range(_messages(count) - 1):
            words.append(comm.allgather(_message([_JOINED, 0]))[active[0]][_FIXED:])
        op = _OPS[number]
        if op not in _ADDITIVE:
            raise DesyncError(_cannot(op, [rank for rank in range(comm.size) if rank not in active]))
        comm.allreduce_many(_zeros(np.concatenate(words)[:count].tolist()), op)
        return
    optimizer = _optimizers[number]() if number < len(_optimizers) else None
    if optimizer is None:
        raise DesyncError(
            f"ranks {active} step with optimizer {number} of those that hvd.DistributedOptimizer made, which this rank "
            "has not: make, and keep, the same optimizers on every rank"
        )
    optimizer._step_empty()


def _announced(process_set: ProcessSet, what: int, number: int, words: list[int]) -> Announcement:
    if process_set is not global_process_set or process_set.group().size == 1:
        return Announcement([])
    comm, room = process_set.group(), _WORDS - _FIXED
    parts = [words[i * room : (i + 1) * room] for i in range(_messages(len(words)))]
    fixed = [_ACTIVE, what, number, len(words)]
    return Announcement([comm.allgather_async(_message([*fixed, *part])) for part in parts])


def _form(tensor: Any) -> list[int]:
    """The tensor's dtype, number of axes, and shape, as integers. TypeError if the tensor cannot be reduced."""
    name = str(tensor.dtype).removeprefix("torch.")
    if not tensor.is_cpu or tensor.layout is not torch.strided or name not in _NUMBERS:
        reading(tensor)
    return [_NUMBERS[name], tensor.dim(), *tensor.shape]


def _zeros(words: list[int]) -> list[Any]:
    """Arrays of zeros, of the dtypes and shapes that `words` describe, in the form that `_form` returns."""
    found = []
    while words:
        dtype, axes = words[:2]
        found.append(np.zeros(words[2 : 2 + axes], _DTYPES[dtype]))
        words = words[2 + axes :]
    return found


def _messages(words: int) -> int:
    """The number of messages that an announcement needs for this many `words` (integers) about tensors."""
    return max(1, -(-words // (_WORDS - _FIXED)))


def _message(words: list[int]) -> Any:
    message = np.zeros(_WORDS, np.int64)
    message[: len(words)] = words
    return message


def _cannot(op: str, joined: list[int]) -> str:
    return (
        f"ranks {joined} have joined, having no data left, and can take part by zeros: that needs Average or Sum, not "
        f"{op!r}"
    )


def announced(process_set: ProcessSet, op: str, tensors: Sequence[Any]) -> list[Any]:
    """Runs an allreduce of `tensors`, in which ranks that have called `hvd.join` take part. Returns new tensors.

    `op`: the reduction.
    """
    telling = announce_allreduce(process_set, op, tensors)
    found = grouped_allreduce(tensors, op, comm=process_set.group())
    telling.wait()
    return found
