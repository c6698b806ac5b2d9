"""The Python functions that XLA calls to run a collective of a compiled function, on host memory or on a device.

Invariant: nothing here calls JAX: JAX would wait for the compiled function, and the compiled function waits for this
call. An error is kept by `_failures`, and only its text is passed to XLA.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from collectives.arrays.array import Array
from collectives.arrays.cuda import LEGACY
from collectives.gradients.objects import gathered
from collectives.jax._channel import Channel
from collectives.jax._failures import keep
from collectives.jax._kinds import Barrier, Form, Kind
from collectives.jax._on_device import XlaArray, device_of, drain
from collectives.native.errors import DesyncError


class Call(NamedTuple):
    """A collective in a compiled function, with its communicator, and the shapes and dtypes of operands and results.

    `names`: the paths of the operands in their pytree (tree of arrays); None if the operand is a single array. `reads`:
    shapes and dtypes of the operands. `writes`: those of the results.
    """

    kind: Kind
    channel: Channel
    names: tuple[str, ...] | None
    reads: tuple[Form, ...]
    writes: tuple[Form, ...]


# Compiled functions contain the number of a call. A number is never reused in a process.
_calls: Final[list[Call]] = []
_numbers: Final[dict[Call, int]] = {}
_lock: Final = threading.Lock()


def number_of(call: Call) -> int:
    """Returns the number of the collective `call`. Compiled functions pass it to `run_views` or `run_on_device`."""
    with _lock:
        number = _numbers.setdefault(call, len(_calls))
        if number == len(_calls):
            _calls.append(call)
    return number


def run_views(number: int, reads: Sequence[memoryview], writes: Sequence[memoryview]) -> str | None:
    """Runs the collective with this number on XLA's buffers; returns None, or the error's text if it fails.

    `number`: from `number_of`. `reads`: the buffers of the operands. `writes`: the buffers of the results.
    """
    call = _calls[number]
    results = [np.ndarray(shape, dtype, view) for (shape, dtype), view in zip(call.writes, writes, strict=True)]
    if call.kind.in_place:  # XLA has put the operands there
        return _run(call, results, results)
    return _run(call, [np.ndarray(*form, view) for form, view in zip(call.reads, reads, strict=True)], results)


def run_on_device(number: int, reads: Sequence[int], writes: Sequence[int], stream: int) -> str | None:
    """Runs a collective as `run_views` does, but on buffers of a CUDA device, in the order of XLA's stream `stream`.

    `reads`, `writes`: the addresses of the operands' and the results' buffers.
    """
    call = _calls[number]
    try:
        device = device_of([*reads, *writes])
        handle = stream or LEGACY
        results = [XlaArray(address, *form, handle, device) for form, address in zip(call.writes, writes, strict=True)]
        operands = results
        if not call.kind.in_place:
            operands = [XlaArray(at, *form, handle, device) for form, at in zip(call.reads, reads, strict=True)]
        if isinstance(call.kind, Barrier):
            drain(handle, device)
    except BaseException as error:
        return keep(error, f"collectives.jax.{call.kind.name} on rank {call.channel.rank}")
    return _run(call, operands, results)


def run_arrays(call: Call, *operands: Any) -> tuple[Array, ...]:
    """Runs the collective `call` on copies of the arrays `operands`, and returns the results as new arrays.

    If the collective fails, raises RuntimeError with the text of the error.
    """
    reads = [np.asarray(x, order="C") for x in operands]
    if call.kind.in_place:
        reads = results = [x.copy() for x in reads]
    else:
        results = [np.empty(shape, dtype) for shape, dtype in call.writes]
    wrong = _run(call, reads, results)
    if wrong is not None:
        raise RuntimeError(wrong)
    return tuple(results)


def _run(call: Call, reads: list[Any], writes: list[Any]) -> str | None:
    channel = call.channel
    try:
        channel.check()
        if call.names is not None:
            _agree(call, call.names)
        call.kind.run(channel.comm, reads, writes)
    except BaseException as error:
        return keep(error, f"collectives.jax.{call.kind.name} on rank {channel.rank}")
    return None


def _agree(call: Call, names: Sequence[str]) -> None:
    """Check that all ranks give the same names, shapes and dtypes; DesyncError on all ranks if they differ.

    The same tree of arrays is checked only once.
    """
    arrays = [f"{name} {dtype.name}{list(shape)}" for name, (shape, dtype) in zip(names, call.reads, strict=True)]
    plan = "\n".join([str(call.kind), *arrays]).encode()
    digest = hashlib.sha256(plan).digest()
    channel = call.channel
    if digest in channel.agreed:
        return
    digests = channel.comm.allgather(np.frombuffer(digest, np.uint8))
    if (digests == digests[0]).all():
        channel.agreed.add(digest)
        return
    lengths = channel.comm.allgather(np.array(len(plan))).tolist()
    everyones = [part.decode().split("\n") for part in gathered(channel.comm, plan, lengths, None)]
    rank = next(rank for rank, other in enumerate(everyones) if other != everyones[0])
    raise DesyncError(
        f"ranks gave different trees to {call.kind.name}, which have to have the same names, shapes and dtypes: "
        f"{_only(0, everyones[0], everyones[rank])}; {_only(rank, everyones[rank], everyones[0])}"
    )


def _only(rank: int, lines: Sequence[str], others: Sequence[str]) -> str:
    """The lines of rank `rank` that the other rank does not have."""
    alone = [line for line in lines if line not in others]
    more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
    return f"only rank {rank} has {', '.join(alone[:3]) or 'nothing'}{more}"
