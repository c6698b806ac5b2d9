"""Every error the library raises on its own account, as one tree.

    CollectiveError           also a RuntimeError, as Horovod's and PyTorch's errors are
    ├── PeerLost              a rank's process or connection is gone
    ├── OpTimeout             a deadline passed; also a TimeoutError
    ├── DesyncError           ranks called different operations, or the same ones in another order
    ├── StaleEpoch            coming: this rank belongs to an earlier epoch of the group
    ├── Aborted               the operation was given up: another rank failed, or this communicator closed
    ├── StoreError            the rendezvous store is unreachable, refused us or lost our keys
    ├── ConfigMismatch        ranks disagree on size, rank numbers, version or configuration
    ├── AuthError             a peer could not prove that it knows the job's secret
    ├── QuorumLost            coming: too few ranks survive to go on
    └── TransportUnavailable  a transport was asked for that cannot work here

Invariant: wrong arguments are ValueError or TypeError and are raised before anything is sent; whatever
concerns the outside world (peers, network, store) is one of these. Each survives pickling, so that process
pools and launchers can carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final


class CollectiveError(RuntimeError):
    """Base of every error raised by this library."""


class PeerLost(CollectiveError):
    """One or more ranks are gone: their process ended or their connections broke.

    `ranks` holds their numbers, ascending, as far as this rank knows.
    """

    ranks: tuple[int, ...]

    def __init__(self, message: str, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(sorted(set(ranks)))
        for witness in witnesses:
            witness(self)

    def __reduce__(self) -> tuple[type, tuple[str, tuple[int, ...]]]:
        return type(self), (str(self), self.ranks)


witnesses: Final[list[Callable[[PeerLost], None]]] = []  # called with each PeerLost that is made; must not raise


class OpTimeout(CollectiveError, TimeoutError):
    """A deadline passed while this rank waited for others.

    `late` holds the ranks it was waiting for, ascending.
    """

    late: tuple[int, ...]

    def __init__(self, message: str, late: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.late = tuple(sorted(set(late)))

    def __reduce__(self) -> tuple[type, tuple[str, tuple[int, ...]]]:
        return type(self), (str(self), self.late)


class DesyncError(CollectiveError):
    """Ranks disagree on what operation comes next; the message says who called what."""


class StaleEpoch(CollectiveError):
    """The group has moved on to a later epoch without this rank. Nothing raises it yet: groups do not shrink."""


class Aborted(CollectiveError):
    """The operation was given up before it completed."""


class StoreError(CollectiveError):
    """The rendezvous store failed; the message names it, the cause and the elapsed time."""


class ConfigMismatch(CollectiveError):
    """Ranks were started with settings that do not fit together."""


class AuthError(CollectiveError):
    """A peer did not prove that it knows the job's secret."""


class QuorumLost(CollectiveError):
    """Fewer ranks survive than are needed to continue. Nothing raises it yet: groups do not shrink."""


class TransportUnavailable(CollectiveError):
    """The requested transport cannot be used here; the message says why."""
