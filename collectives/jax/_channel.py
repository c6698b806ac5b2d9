"""The communicator that compiled functions use: a duplicate of the user's, so that the calls of both do not mix.

Invariant: each communicator has at most one channel, which holds its duplicate. The channel is made when JAX first uses
the communicator, which every rank does at the same point of the program.
"""

from __future__ import annotations

import atexit
import weakref
from contextlib import suppress
from typing import Final

import jax

from collectives.core.communicator import Communicator
from collectives.core.default import default
from collectives.jax import _effect, _failures
from collectives.native.errors import Aborted


class Channel:
    """A duplicate of a communicator, for collectives inside functions that JAX compiles.

    `comm` is the duplicate. Only compiled functions use it: on XLA's threads, one collective at a time. `agreed`
    contains hashes of the trees of arrays (pytrees) whose names, shapes and dtypes were found equal on all ranks.
    """

    __slots__ = ("__weakref__", "_owner", "agreed", "comm", "name", "rank", "size")

    def __init__(self, owner: Communicator) -> None:
        self.comm: Final = owner.attached()
        self.name: Final = owner.name
        self.rank: Final = owner.rank
        self.size: Final = owner.size
        self._owner: Final = weakref.ref(owner)
        self.agreed: Final[set[bytes]] = set()

    def check(self) -> None:
        """Raises Aborted if the user has closed the communicator of which this is a duplicate."""
        owner = self._owner()
        if owner is None or owner.closed:
            self.comm.close()
            raise Aborted(
                f"communicator {self.name!r} is closed; functions compiled with it need compiling with the new one: "
                "pass comm= as a static argument, or call jax.clear_caches()"
            )

    def __repr__(self) -> str:
        return f"{self.name}[{self.rank}/{self.size}]"


_channels: Final[weakref.WeakKeyDictionary[Communicator, Channel]] = weakref.WeakKeyDictionary()


def channel_of(comm: Communicator | None) -> Channel:
    """Returns the duplicate of `comm` for compiled functions; the first call for a communicator makes it.

    All ranks have to make this first call together. `comm`: None for the communicator that `collectives.init` made.
    """
    owner = default(comm)
    found = _channels.get(owner)
    if found is None:
        _failures.recover()
        if not _channels:
            # Must run before communicators close at exit; functions registered last run first.
            atexit.unregister(_finish)
            atexit.register(_finish)
        found = _channels[owner] = Channel(owner)
    return found


def _finish() -> None:
    """At exit, wait for this rank's dispatched collectives, because other ranks may wait for its messages."""
    with suppress(jax.errors.JaxRuntimeError):  # JAX waits too, and reports the error
        _effect.wait()
