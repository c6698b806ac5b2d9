"""The last operations of a communicator and its use of memory, as values for json.dumps.

Invariant: this module only reads what the engine recorded and starts no operation, so a communicator may be in any
state, also broken or closed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from collectives.calls.prepare import Preparer
from collectives.native import _engine

VERSION: Final = 1  # of `dump`: with the same number, keys keep their meaning, and new keys may be added
RESOLUTION: Final = 1e-6  # seconds: accuracy of the times of one dump relative to the clock

_STATES: Final = ("queued", "started", "done", "failed")
_ROOTED: Final = frozenset({"reduce", "broadcast", "gather", "scatter"})
_REDUCING: Final = frozenset({"allreduce", "reduce", "reduce_scatter", "scan", "exscan"})


def _names(codes: Mapping[str, int]) -> dict[int, str]:
    return {code: name for name, code in codes.items()}


_COLLECTIVES: Final = _names(_engine.COLLECTIVES)
_DTYPES: Final = _names(_engine.DTYPES)
_OPS: Final = _names(_engine.OPS) | {_engine.CALLER_OP: "function"}


def operations(group: _engine.Group, prepare: Preparer) -> list[dict[str, Any]]:
    """The last operations of this rank, oldest first."""
    return [_operation(record, prepare) for record in group.records()]


def links(group: _engine.Group, size: int) -> list[dict[str, Any]]:
    """The open links of this rank, each with its peer, its transport, its ports and the transport's counters."""
    kinds = ((peer, group.link_kind(peer)) for peer in range(size))
    return [
        {"peer": peer, "kind": kind, "path": group.link_path(peer), "counts": group.link_counts(peer)}
        for peer, kind in kinds
        if kind not in (None, "self")
    ]


def clock() -> dict[str, Any]:
    """Returns the name of the clock for operations' times, its time now, and the Unix time now; times in seconds."""
    return {"name": "CLOCK_MONOTONIC", "now": time.monotonic(), "unix": time.time(), "resolution": RESOLUTION}


def here() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}


def _operation(record: Mapping[str, Any], prepare: Preparer) -> dict[str, Any]:
    message: bool = record["message"]
    state = _STATES[record["state"]]
    over = state == "done"
    collective = _COLLECTIVES.get(record["collective"], "unknown")
    if message:
        collective = "send" if record["sends"] else "recv"
    return {
        "sequence": record["sequence"] if record["number"] else None,
        "collective": collective,
        "dtype": _DTYPES.get(record["dtype"]),
        "count": record["count"],
        "op": _OPS.get(record["op"]) if collective in _REDUCING else None,
        "root": record["root"] if collective in _ROOTED else None,
        "peer": record["peer"] if message and record["peer"] >= 0 else None,
        "algorithm": None if message else prepare.algorithm_names.get(record["algorithm"]),
        "engine": record["engine"] or None,
        "state": state,
        "queued": record["queued"],
        "begin": record["begun"],
        "first": record["first"],
        "end": record["ended"],
        "waited": record["waited"],
        "sent": record["sent"] if over else None,
        "received": record["received"] if over else None,
        "error": record["error"] or None,
    }


def memory(group: _engine.Group, kept: Iterable[_engine.Operation]) -> dict[str, int]:
    """The communicator's memory in bytes, by kind."""
    return {**group.memory(), "schedules": sum(operation.memory for operation in kept)}
