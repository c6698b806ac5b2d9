"""Chooses the wire format of calls with wire="auto": the format in which float32 numbers are sent, or none.

Invariant: the choice depends only on the call's collective, op and dtype, on its number of bytes and on the table of
the group, so it is the same on every rank. Calls for which there is no format are sent as they are, and never refused.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from collectives.arrays.array import reading
from collectives.arrays.located import is_device_array
from collectives.arrays.wire import FLOAT32, WireName
from collectives.calls.op import Reduction
from collectives.calls.prepare import Preparer
from collectives.calls.wired import OPS
from collectives.schedule.table import AS_IT_IS


def chosen(prepare: Preparer, collective: str, x: Any, out: Any, op: Reduction = "sum") -> WireName | None:
    """Returns the format for a call on the array `x`, for allreduce_many on a list; None to send it as it is.

    Arguments that the call refuses are not refused here.
    """
    if not isinstance(op, str) or op not in OPS:
        return None
    if collective != "allreduce_many":
        return found(prepare, collective, _nbytes(x, out))
    if not isinstance(x, list | tuple):
        return None
    outs = out if isinstance(out, list | tuple) and len(out) == len(x) else [None] * len(x)
    sizes = [_nbytes(array, target) for array, target in zip(x, outs, strict=True)]
    return None if None in sizes else found(prepare, "allreduce", sum(size for size in sizes if size is not None))


def found(prepare: Preparer, collective: str, nbytes: int | None) -> WireName | None:
    """Returns the format that the table chooses for float32 arrays; None to send them as they are.

    `nbytes`: as passed to the call; None if there is no format for its arrays.
    """
    if nbytes is None:
        return None
    whole = nbytes * prepare.size if collective == "allgather" else nbytes
    return format_name(prepare.wire(collective, whole).algorithm)


def format_name(chosen: str) -> WireName | None:
    """The format that a row with wire=auto names; None if it says that numbers are sent as they are."""
    return None if chosen == AS_IT_IS else cast(WireName, chosen)


def _nbytes(x: Any, out: Any) -> int | None:
    """The bytes of a float32 array in host memory; None for another array, another `out`, and what is no array."""
    if type(x) is not np.ndarray:
        if is_device_array(x):
            return None
        try:
            x = reading(x)
        except (TypeError, ValueError):  # the call raises it, too
            return None
    return x.nbytes if x.dtype == FLOAT32 and not is_device_array(out) else None
