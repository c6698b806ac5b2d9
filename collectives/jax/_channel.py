"""The communicator that compiled functions use: a duplicate of the user's, so that they do not interfere.

Invariant: each communicator has one channel, made when JAX first uses it, on every rank at the same place.
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
    """`comm` is for collectives inside compiled functions alone: XLA's threads use it, one at a time.

    `agreed` are digests of the trees that are known to be the same on all ranks.
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
        """Raise Aborted if the user has closed the communicator."""
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
    """The channel of `comm`, or of the default communicator. Its first use is collective: all ranks make it there."""
    owner = default(comm)
    found = _channels.get(owner)
    if found is None:
        _failures.recover()
        if not _channels:
            # Communicators close when the process ends. This comes before that, as it is registered after it.
            atexit.unregister(_finish)
            atexit.register(_finish)
        found = _channels[owner] = Channel(owner)
    return found


def _finish() -> None:
    """Wait for dispatched collectives, because other ranks wait for this one's part."""
    with suppress(jax.errors.JaxRuntimeError):  # JAX waits, too, and says so
        _effect.wait()
