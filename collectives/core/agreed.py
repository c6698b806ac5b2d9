"""Records that the ranks of a communicator exchange, over their links, before an engine for device memory is made.

Invariant: records are authenticated with the job's secret, if there is one, as those in the store are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from collectives.arrays.array import Array
from collectives.calls.moves import Calls, Deadline
from collectives.calls.prepare import Shape
from collectives.core.family import Origin
from collectives.core.links import Linked
from collectives.native.errors import AuthError, ConfigMismatch
from collectives.rendezvous import secret as secrets

RECORD: Final = 1024  # bytes of a rank's record, so that ranks need not exchange lengths


class Exchange:
    """Exchanges records (dicts) between the ranks of one communicator, to form `engine`, which will run calls."""

    def __init__(self, engine: str, linked: Linked, calls: Calls, origin: Origin) -> None:
        self._engine: Final = engine
        self._linked: Final = linked
        self._calls: Final = calls
        self._origin: Final = origin

    def __call__(self, mine: dict[str, Any], what: str, deadline: Deadline) -> Sequence[Any]:
        """The records of all ranks, each of at most RECORD bytes as JSON; AuthError if one is not authentic."""
        calls, origin, engine = self._calls, self._origin, self._engine
        secret = origin.policy.secret
        run = f"{origin.run} {origin.path}"
        body = json.dumps(mine, separators=(",", ":")).encode()
        tag = secrets.sign(secret, run, origin.epoch, f"{engine}/{what}/{calls.rank}", body) if secret else b""
        row = np.zeros(RECORD, np.uint8)
        sealed = tag + body
        row[: len(sealed)] = np.frombuffer(sealed, np.uint8)
        rows: Array = np.empty((calls.size, RECORD), np.uint8)
        shape = Shape("allgather", row.dtype, RECORD, rows.size, RECORD, purpose=f"to form engine {engine}: {what}")
        operation = calls.prepare.collective(shape, "auto").operation
        self._linked.group.run(operation, row, rows, deadline.left)
        found = []
        for rank, one in enumerate(rows):
            data = one.tobytes().rstrip(b"\0")
            start = secrets.TAG_SIZE if secret else 0
            # A tag may end with zeros only if the body is missing.
            seal, text = one.tobytes()[:start], data[start:]
            if secret and not secrets.verify(secret, run, origin.epoch, f"{engine}/{what}/{rank}", text, seal):
                raise AuthError(f"what rank {rank} sent to form engine {engine} was not written by a rank of the job")
            try:
                found.append(json.loads(text))
            except ValueError as error:
                raise nonsense(rank, text[:100]) from error
        return found


def nonsense(rank: int, data: object) -> ConfigMismatch:
    """The error for a record that is no record of this version."""
    return ConfigMismatch(f"rank {rank} sent something that makes no sense: {str(data)[:200]}")
