"""The interface of a library that runs whole collectives on device memory, such as NCCL.

Invariant: a library connects no pair of ranks, so links carry the messages by which ranks agree. Ranks decide from the
records that all have published whether they use a library, so all decide the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Library(Protocol):
    """One such library. Stateless: one object serves all groups of the process."""

    @property
    def scheme(self) -> str:
        """The library's name, as in `init(transport=...)`."""

    def available(self) -> str | None:
        """None if this process can use the library, else the reason why not, and what to do.

        Takes milliseconds. Uses no device, since most programs on a machine with devices do not use them either.
        """

    def published(self) -> Sequence[str]:
        """Short ASCII texts that this rank publishes if the library is available. Never secret, never empty."""
