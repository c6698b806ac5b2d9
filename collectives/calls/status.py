"""Status: what is known of a message that was received.

Invariant: it is written when the call that it was given to succeeds, and not before.
"""

from __future__ import annotations


class Status:
    """Give one to `recv` or `sendrecv` to learn who sent the message and how long it was.

    `source`: the rank that sent it. `count`: its elements, which may be fewer than the array has. Both are None
    until the call is complete; for an `_async` twin, until its `Work` has been waited for. It may be used again.
    """

    __slots__ = ("count", "source")

    def __init__(self) -> None:
        self.source: int | None = None
        self.count: int | None = None

    def __repr__(self) -> str:
        return f"Status(source={self.source}, count={self.count})"
