"""The interface of a library that runs whole collectives on device memory, such as NCCL.

Invariant: a library connects no pair of ranks, so links carry the messages by which ranks agree. Ranks decide from the
records that all have published whether they use a library, so all decide the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Library(Protocol):
    """A library, such as NCCL, that runs whole collectives on device memory.

    Objects of this class have no state: one object serves all groups of the process.
    """

    @property
    def scheme(self) -> str:
        """The library's name, as in `init(transport=...)`."""

    def available(self) -> str | None:
        """Return None if this process can use the library, such as NCCL.

        Otherwise return the reason and a remedy, as text. The call takes milliseconds. It does not touch a GPU, because
        most programs on a machine with GPUs do not use them.
        """

    def published(self) -> Sequence[str]:
        """Return short ASCII texts that this rank publishes to all other ranks if it can use the library.

        There is at least one text. No text is secret.
        """
