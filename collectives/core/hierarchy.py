"""Makes the communicators by which NCCL runs calls inside hosts, and host memory those between hosts.

Invariant: every rank comes to the same decision, and learns of a failure on any rank. The communicators end with that
from which they are made.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collectives.arrays.cuda import LEGACY
from collectives.calls.moves import Deadline
from collectives.calls.nccl import HIERARCHY
from collectives.calls.two_levels import Levels
from collectives.core.agreed import RECORD, Exchange, nonsense
from collectives.native.errors import CollectiveError

if TYPE_CHECKING:
    from collectives.core.communicator import Communicator


def levels(comm: Communicator, device: int, deadline: Deadline) -> Levels | str:
    """Makes communicators inside and between hosts; returns them, or a text that says why they cannot be used.

    All ranks call this inside a call. `device`: the device of this rank's arrays.
    """

    def everyones(data: bytes) -> Sequence[bytes]:
        return comm._everyones(data, deadline)

    linked = comm._linked
    host, place = linked.layout.hosts[comm.rank], linked.local_rank
    made = []
    for name, color, key in (("within", host, place), ("between", place, host), ("side", 0, comm.rank)):
        child = comm._bare_child(color, key, f"{HIERARCHY}.{name}{color}", everyones, deadline)
        assert child is not None
        comm._attached.append(weakref.finalize(comm, child.close))
        made.append(child)
    within, between, side = made
    within._use_streams()
    streams = within._runner.streams
    problem = "its host cannot use NCCL"
    if streams is not None:
        try:
            problem = streams.formed(device, LEGACY, deadline)
        except CollectiveError as error:  # which all ranks have to learn
            problem = str(error)
    exchange = Exchange(HIERARCHY, linked, comm._calls, comm._origin)
    for rank, data in enumerate(exchange({"problem": problem[: RECORD // 2]}, "levels", deadline)):
        match data:
            case {"problem": ""}:
                continue
            case {"problem": str(problem)}:
                return f"rank {rank} on {linked.members[rank].identity.host}: {problem}"
        raise nonsense(rank, data)
    assert streams is not None
    return Levels(streams, between._runner.between_hosts(), side._runner.side())
