"""Horovod's process sets: sets of ranks that run collectives among themselves.

Invariant: a registered set has a number, and a communicator on every rank. On a rank outside the set the communicator
contains that rank alone, so that an optimizer that uses the set leaves this rank's gradients unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

from collectives.core.communicator import Communicator
from collectives.gradients.objects import allgather_object
from collectives.horovod import world
from collectives.native.errors import DesyncError


class ProcessSet:
    """A set of ranks, given by their numbers. Pass it to `hvd.init` or `hvd.add_process_set` before use."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """ValueError for anything but distinct rank numbers."""
        if not isinstance(ranks, Iterable):
            raise ValueError(
                f"a ProcessSet is made of a list of ranks, not of {type(ranks).__name__}: MPI communicators have no "
                "part in this library"
            )
        found = list(ranks)
        if any(type(rank) is not int or rank < 0 for rank in found) or len(set(found)) < len(found):
            raise ValueError(f"a ProcessSet is made of numbers of ranks, each of them once, not of {found}")
        self.ranks: list[int] | None = sorted(found)
        self.process_set_id: int | None = None
        self.comm: Communicator | None = None  # of the set, or of this rank alone if it is not in the set

    def size(self) -> int | None:
        """The number of ranks in this set of ranks; None before the set is registered."""
        return None if self.process_set_id is None else len(self._members())

    def rank(self) -> int | None:
        """This rank's number in this set of ranks; None before the set is registered.

        Raises ValueError if this rank is not in the set.
        """
        if self.process_set_id is None:
            return None
        self._check_included()
        return self._members().index(world.current().comm.rank)

    def included(self) -> bool | None:
        """Whether this rank is in the set."""
        return world.current().comm.rank in self._members()

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def group(self) -> Communicator:
        """The communicator of this set of ranks.

        Raises ValueError if the set is not registered, or does not contain this rank.
        """
        own = self.training()
        self._check_included()
        return own

    def training(self) -> Communicator:
        """The communicator on which this rank reduces gradients if training is limited to this set of ranks.

        On a rank outside the set, the communicator contains this rank alone.
        """
        if self.process_set_id == 0:
            return world.current().comm
        world.current()
        if self.comm is None or self.comm.closed:
            raise ValueError(f"{self!r} has not been registered: give it to hvd.init or hvd.add_process_set")
        return self.comm

    def root(self, root_rank: int) -> int:
        """Converts `root_rank`, a rank's number among all ranks, to its number in this set of ranks.

        Raises ValueError if the rank is not in the set.
        """
        members = self._members()
        if root_rank not in members:
            raise ValueError(f"root_rank is {root_rank}, which is not a rank of {self!r}")
        return members.index(root_rank)

    def _check_included(self) -> None:
        if not self.included():
            raise ValueError(f"rank {world.current().comm.rank} is not part of {self!r}")

    def _members(self) -> list[int]:
        if self.process_set_id == 0:
            return list(range(world.current().comm.size))
        return self.ranks or []


global_process_set: Final = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.ranks = None  # all ranks, however many there are after init

_registered: Final[list[ProcessSet]] = []
_numbers: Final = itertools.count(1)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a set of ranks, given as a ProcessSet or as rank numbers, and returns the ProcessSet.

    Every rank must call this function, also ranks outside the set. ValueError if a set of these ranks is registered
    already, or if one of the numbers is not a rank. DesyncError if ranks pass different sets.
    """
    comm = world.current().comm
    given = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    ranks = given._members()
    everyones = allgather_object(comm, ranks)
    if any(theirs != ranks for theirs in everyones):
        reported = ", ".join(f"rank {rank}: {theirs}" for rank, theirs in enumerate(everyones))
        raise DesyncError(f"add_process_set: ranks name different sets: {reported}")
    if not ranks or ranks[-1] >= comm.size:
        raise ValueError(f"{given!r} has to be made of ranks 0 to {comm.size - 1}")
    if len(ranks) == comm.size or any(known.ranks == ranks for known in _registered):
        raise ValueError(f"Attempted to add a duplicate process set: {given!r}")
    given.comm = comm.split(comm.size if comm.rank in ranks else comm.rank)
    given.process_set_id = next(_numbers)
    _registered.append(given)
    return given


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregisters a set of ranks, and returns whether it was registered. Every rank must call this function.

    The set of all ranks cannot be unregistered: for it the function returns False.
    """
    if process_set not in _registered:
        return False
    _registered.remove(process_set)
    _forget(process_set)
    return True


def of(process_set_id: int) -> ProcessSet:
    """Returns the registered set of ranks with the number `process_set_id`. Raises ValueError if there is none."""
    for known in (global_process_set, *_registered):
        if known.process_set_id == process_set_id:
            return known
    raise ValueError(f"no process set has the number {process_set_id}")


def forget_all() -> None:
    """Unregister all process sets; `hvd.shutdown` does this."""
    for process_set in _registered:
        _forget(process_set)
    _registered.clear()


def _forget(process_set: ProcessSet) -> None:
    process_set.process_set_id = None
    if process_set.comm is not None:
        process_set.comm.close()
        process_set.comm = None
