"""The library's own error classes, as one tree.

    CollectiveError           also a RuntimeError, like the errors of Horovod and PyTorch
    ├── PeerLost              a rank's process or connection is gone
    ├── OpTimeout             a deadline passed; also a TimeoutError
    ├── DesyncError           ranks called different operations, or called them in a different order
    ├── StaleEpoch            the other ranks have given up this rank, which was silent, and go on without it
    ├── Aborted               the operation was given up: another rank failed, or this communicator was closed
    ├── StoreError            the rendezvous store is unreachable, refused a request or lost keys
    ├── ConfigMismatch        ranks disagree on the number of ranks, rank numbers, version or configuration
    ├── AuthError             a peer could not prove that it knows the job's secret
    ├── QuorumLost            planned: too few ranks survive to go on
    └── TransportUnavailable  the requested transport cannot work here

Invariant: a wrong argument raises ValueError or TypeError before anything is sent. Failures outside this process (of
peers, network or store) raise one of these errors. Every error can be pickled, so that process pools and launchers can
pass errors on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

_A_RANK: Final = re.compile(r"\brank \d")
_A_DEVICE: Final = re.compile(r"\bdevice \d")


class CollectiveError(RuntimeError):
    """Base of every error raised by this library."""


class PeerLost(CollectiveError):
    """One or more ranks are lost: their processes have ended, or the connections to them are broken.

    `ranks` has the numbers of the lost ranks, ascending. It has only ranks of whose loss this rank knows.
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
    """The deadline of a call has passed while this rank waited for other ranks.

    `late` has the numbers of the ranks for which this rank waited, ascending.
    """

    late: tuple[int, ...]

    def __init__(self, message: str, late: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.late = tuple(sorted(set(late)))

    def __reduce__(self) -> tuple[type, tuple[str, tuple[int, ...]]]:
        return type(self), (str(self), self.late)


class DesyncError(CollectiveError):
    """Ranks have called different collectives, or the same collective with different arguments.

    The message shows what each rank called.
    """


class StaleEpoch(CollectiveError):
    """The other ranks took this rank for dead, because it did not answer.

    The other ranks have given up the group, or go on without this rank.
    """


class Aborted(CollectiveError):
    """A collective was aborted before it completed, because another rank failed or the communicator was closed."""


class StoreError(CollectiveError):
    """The key-value store through which ranks find each other has failed.

    The message names the store, the cause and the elapsed time.
    """


class ConfigMismatch(CollectiveError):
    """Ranks were started with settings that do not fit together."""


class AuthError(CollectiveError):
    """A peer did not prove that it knows the job's secret."""


class QuorumLost(CollectiveError):
    """An error for groups in which too few ranks are left to continue.

    Nothing raises it yet: a group cannot continue after the loss of a rank.
    """


class TransportUnavailable(CollectiveError):
    """The requested transport, such as NCCL or InfiniBand, cannot be used in this process.

    The message has the reason.
    """


def name_rank(rank: int, error: Exception, device: int | None = None) -> None:
    """Put the rank on which `error` occurred before its text, and the device if one is given.

    A text that names a rank stays as it is. A device is not added to a text that names one.
    """
    text = str(error)
    if _A_RANK.search(text) is None:
        where = "" if device is None or _A_DEVICE.search(text) else f", device {device}"
        error.args = (f"rank {rank}{where}: {text}",)
