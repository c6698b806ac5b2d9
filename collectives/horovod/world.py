"""The communicator that `hvd.init` opened, shared by all modules of collectives.horovod.

Invariant: there is at most one `World`. `hvd.shutdown` closes the communicators that this module opened, which
`World.opened` lists; a communicator that the user made stays open.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

import collectives
from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.core.default import opened as already
from collectives.horovod.horovodrun import refuse_elastic
from collectives.native.errors import ConfigMismatch


class NotInitializedError(RuntimeError, ValueError):
    """Raised if `hvd.init()` was not called, or `hvd.shutdown()` was called since. Also a ValueError, as in Horovod."""


class World(NamedTuple):
    """The state that `hvd.init` has set up: the communicator, and this rank's position among the hosts.

    `opened`: the communicators that `hvd.shutdown` closes. `cross_size`: the number of hosts that have a rank with this
    rank's local rank. `cross_rank`: the index of this host among these hosts. `homogeneous`: whether all hosts have the
    same number of ranks.
    """

    comm: Communicator
    opened: tuple[Communicator, ...]
    cross_rank: int
    cross_size: int
    homogeneous: bool


_lock: Final = threading.Lock()
_times: Final = itertools.count()
_worlds: Final[list[World]] = []  # at most one


def current() -> World:
    """Returns the state that `hvd.init` has set up: the communicator, and this rank's position among the hosts.

    Raises NotInitializedError if `hvd.init` was not called.
    """
    if not exists():
        raise NotInitializedError("Horovod has not been initialized; use hvd.init().")
    return _worlds[0]


def exists() -> bool:
    return bool(_worlds) and not _worlds[0].comm.closed


def begin(comm: Any) -> bool:
    """Makes the communicator of `hvd.init`, unless there is one already; returns whether this call made it.

    `comm`: None for all ranks, a Communicator to use, or a list of the ranks to include.
    """
    with _lock:
        if exists():
            return False
        _worlds.clear()
        opened: list[Communicator] = []
        try:
            _worlds.append(_of(_chosen(comm, opened), opened))
        except BaseException:
            _close(opened)
            raise
    return True


def end() -> None:
    """Closes the communicators that `hvd.init` made, and forgets them. Has no effect if `hvd.init` was not called."""
    with _lock:
        for world in _worlds:
            _close(world.opened)
        _worlds.clear()


def _chosen(comm: Any, opened: list[Communicator]) -> Communicator:
    if isinstance(comm, Communicator):
        return default(comm)
    if comm is None:
        return _met(opened)
    if not isinstance(comm, Iterable):
        raise NotImplementedError(
            f"hvd.init(comm={type(comm).__name__}): give None, which finds the ranks that mpirun started, a list of "
            "ranks, or a collectives.Communicator"
        )
    ranks = list(comm)
    if any(type(rank) is not int or rank < 0 for rank in ranks) or len(set(ranks)) < len(ranks):
        raise ValueError(f"hvd.init(comm={ranks}): give numbers of ranks, each of them once")
    whole = _met(opened)
    return _part(whole, ranks, opened) if ranks else whole


def _part(whole: Communicator, ranks: list[int], opened: list[Communicator]) -> Communicator:
    """A communicator of only those ranks of `whole` that `ranks` lists; it is added to `opened`.

    Every rank of `whole` has to call this, because the split is collective. ValueError on ranks that are not listed.
    """
    part = whole.split(min(ranks) if whole.rank in ranks else None)
    if part is None:
        raise ValueError(f"hvd.init(comm={ranks}): this is rank {whole.rank}, which is not one of them")
    opened.append(part)
    if part.size != len(ranks):
        raise ConfigMismatch(
            f"hvd.init(comm={ranks}) on rank {whole.rank}: {part.size} ranks came with this list, or one that begins "
            f"like it; there are ranks 0 to {whole.size - 1}, and all that are named have to give the same list"
        )
    return part


def _met(opened: list[Communicator]) -> Communicator:
    """The communicator that this process already has; if it has none, a new one of all ranks, added to `opened`."""
    if already():
        return default()  # raises if there are several
    time = next(_times)
    # Each init uses a new name: ranks that still shut down must not meet ranks that initialize again.
    name = f"{os.environ.get('COLLECTIVES_NAME') or 'default'}.{time}" if time else None
    refuse_elastic(os.environ)
    made = collectives.init(name=name)
    opened.append(made)
    return made


def _of(comm: Communicator, opened: list[Communicator]) -> World:
    places = comm.allgather(np.array([comm.local_rank, comm.local_size]))
    alike = np.flatnonzero(places[:, 0] == comm.local_rank).tolist()
    homogeneous = bool((places[:, 1] == comm.local_size).all())
    return World(comm, tuple(opened), alike.index(comm.rank), len(alike), homogeneous)


def _close(opened: Iterable[Communicator]) -> None:
    for comm in reversed(list(opened)):
        comm.close()
