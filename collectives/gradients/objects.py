"""Small Python objects between ranks: bytes, or what JSON can say without change. Nothing is ever unpickled.

Invariant: where one rank's object cannot travel, every rank raises.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from collectives.arrays import check_rank
from collectives.communicator import Communicator
from native.errors import Aborted, DesyncError

_BYTES: Final = b"b"
_JSON: Final = b"j"
_REFUSED: Final = -1


def broadcast_object(comm: Communicator, obj: Any, root: int = 0, timeout: float | None = None) -> Any:
    """The root's object, on every rank; others' are not looked at.

    bytes, None, bool, int, float, str, and lists and dicts of them with str keys; tuples arrive as lists.
    TypeError on the root for anything else, and Aborted on the others.
    """
    root = check_rank(root, comm.size, "root_rank")
    refusal: TypeError | None = None
    data = b""
    if comm.rank == root:
        try:
            data = encode(obj)
        except TypeError as error:
            refusal = error
    length = comm.broadcast(np.array([_REFUSED if refusal else len(data)]), root, timeout=timeout)
    if refusal is not None:
        raise refusal
    if length[0] == _REFUSED:
        raise Aborted(f"rank {root} has no object that can travel: its error says why")
    found = np.frombuffer(data, np.uint8) if comm.rank == root else np.empty(length[0], np.uint8)
    return decode(comm.broadcast(found, root, timeout=timeout).tobytes())


def allgather_object(comm: Communicator, obj: Any, timeout: float | None = None) -> list[Any]:
    """Every rank's object, in rank order. What can travel, and errors: see `broadcast_object`."""
    refusal: TypeError | None = None
    data = b""
    try:
        data = encode(obj)
    except TypeError as error:
        refusal = error
    lengths = comm.allgather(np.array([_REFUSED if refusal else len(data)]), timeout=timeout)[:, 0].tolist()
    if refusal is not None:
        raise refusal
    refused = [rank for rank, length in enumerate(lengths) if length == _REFUSED]
    if refused:
        raise Aborted(f"ranks {refused} have no object that can travel: their errors say why")
    return [decode(part) for part in gathered(comm, data, lengths, timeout)]


def gathered(comm: Communicator, mine: bytes, lengths: list[int], timeout: float | None) -> list[bytes]:
    """Every rank's bytes, of these lengths."""
    whole = comm.allgatherv(np.frombuffer(mine, np.uint8), timeout=timeout).tobytes()
    ends = np.cumsum(lengths).tolist()
    return [whole[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def encode(obj: Any) -> bytes:
    """TypeError for what would not come back as it is."""
    if isinstance(obj, bytes | bytearray):
        return _BYTES + bytes(obj)
    _check(obj)
    return _JSON + json.dumps(obj).encode()


def decode(data: bytes) -> Any:
    """What `encode` encoded. DesyncError for anything else."""
    if data[:1] == _BYTES:
        return data[1:]
    try:
        if data[:1] == _JSON:
            return json.loads(data[1:])
    except ValueError:
        pass
    raise DesyncError(f"what came is no object of a rank: {data[:20]!r}")


def _check(obj: Any) -> None:
    if obj is None or type(obj) in (bool, int, float, str):
        return
    if isinstance(obj, dict):
        if not all(type(key) is str for key in obj):
            raise TypeError("an object between ranks may have dicts with str keys only")
        obj = list(obj.values())
    if not isinstance(obj, list | tuple):
        raise TypeError(
            f"a {type(obj).__name__} cannot travel between ranks: give bytes (alone), or None, bool, int, float, "
            "str, lists and dicts of them"
        )
    for each in obj:
        _check(each)
