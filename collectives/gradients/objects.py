"""Sends Python objects between ranks, as data in the format of the module `encoding`: nothing is ever unpickled.

Invariant: if one rank's object cannot be sent, every rank raises an error.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from collectives.arrays.array import check_rank
from collectives.core.communicator import Communicator
from collectives.gradients.encoding import decode, encode
from collectives.native.errors import Aborted

_REFUSED: Final = -1


def broadcast_object(comm: Communicator, obj: Any, root: int = 0, timeout: float | None = None) -> Any:
    """Returns the object `obj` of rank `root` on every rank; `obj` is ignored on the other ranks.

    Supported are None, bool, int, float, complex, str, bytes, NumPy arrays and scalars; the standard library's numbers,
    dates and times; and lists, tuples, dicts and sets of all these, up to 100 levels deep. Objects keep their types.
    For any other object the root raises TypeError (ValueError if it has more levels), and the other ranks raise
    Aborted. `timeout`: in seconds; None for the communicator's timeout.
    """
    root = check_rank(root, comm.size, "root_rank")
    refusal: TypeError | ValueError | None = None
    data = b""
    if comm.rank == root:
        try:
            data = encode(obj)
        except (TypeError, ValueError) as error:
            refusal = error
    length = comm.broadcast(np.array([_REFUSED if refusal else len(data)]), root, timeout=timeout)
    if refusal is not None:
        raise refusal
    if length[0] == _REFUSED:
        raise Aborted(f"rank {root} has no object that can be sent: see its error")
    found = np.frombuffer(data, np.uint8) if comm.rank == root else np.empty(length[0], np.uint8)
    return decode(comm.broadcast(found, root, timeout=timeout).tobytes())


def allgather_object(comm: Communicator, obj: Any, timeout: float | None = None) -> list[Any]:
    """Returns a list of every rank's object `obj`, in rank order.

    `broadcast_object` describes which objects are supported, and the errors for others.
    """
    refusal: TypeError | ValueError | None = None
    data = b""
    try:
        data = encode(obj)
    except (TypeError, ValueError) as error:
        refusal = error
    lengths = comm.allgather(np.array([_REFUSED if refusal else len(data)]), timeout=timeout)[:, 0].tolist()
    if refusal is not None:
        raise refusal
    refused = [rank for rank, length in enumerate(lengths) if length == _REFUSED]
    if refused:
        raise Aborted(f"ranks {refused} have no objects that can be sent: see their errors")
    return [decode(part) for part in gathered(comm, data, lengths, timeout)]


def gathered(comm: Communicator, mine: bytes, lengths: list[int], timeout: float | None) -> list[bytes]:
    """Gathers the bytes `mine` of every rank; returns them as a list in rank order.

    `lengths` has the number of bytes of each rank, and has to be the same on all ranks.
    """
    whole = comm.allgatherv(np.frombuffer(mine, np.uint8), timeout=timeout).tobytes()
    ends = np.cumsum(lengths).tolist()
    return [whole[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
