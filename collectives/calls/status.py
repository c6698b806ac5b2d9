"""Status: sender and length of a received message.

Invariant: a Status is written only when the call to which it was passed succeeds.
"""

from __future__ import annotations


class Status:
    """Receives the sender and length of a message: pass a Status as `status` to `recv` or `sendrecv`.

    `source`: the rank that sent the message. `count`: the number of elements received, which may be fewer than the
    array has. Both are None until the call is complete; after an `_async` call, until its `Work` has been waited for.
    One Status may be passed to several calls, one after the other.
    """

    __slots__ = ("count", "source")

    def __init__(self) -> None:
        self.source: int | None = None
        self.count: int | None = None

    def __repr__(self) -> str:
        return f"Status(source={self.source}, count={self.count})"
