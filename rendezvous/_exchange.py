"""The exchange of one value by each rank of a group that has formed, through the store.

Invariant: if a rank does not call, all others raise the same error: the first that gives up writes the reason, and the
others raise what it wrote. The last of them removes all keys of the exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from collectives.native.errors import AuthError, CollectiveError, OpTimeout, PeerLost

from ._checks import Deadline, check_timeout
from ._reason import FirstReason
from ._records import ranks_text
from .store import DEFAULT_TIMEOUT, Store

if TYPE_CHECKING:
    from .group import Membership

LOOK = 0.2  # seconds between looks at the ranks that have not called


def exchange(
    store: Store, membership: Membership, value: Any, timeout: float = DEFAULT_TIMEOUT, silence: float = 0.0
) -> list[Any]:
    """Send `value` to all other ranks through the store; return the values of all ranks, as a list by rank.

    Every rank of the group `membership` must call this function exactly once. `value` is anything that JSON can
    represent, at most `MAX_RECORD` bytes long. The last rank to read all values deletes them from the store.

    `timeout` is in seconds. `silence` is the number of seconds after which a rank that has not called this function
    counts as lost; 0 means no limit.

    Raises: OpTimeout if ranks have not called this function before the deadline; its `late` lists these ranks. PeerLost
    for a rank whose process has ended, or that has been silent for `silence` seconds. AuthError for a value that no
    rank of the group wrote. StoreError if the store fails.
    """
    deadline = Deadline(check_timeout(timeout))
    scope, size = membership.scope, membership.size
    keys = [scope.key(membership.session, f"word/{rank}") for rank in range(size)]
    failure = FirstReason(store, membership, "unanswered")
    mine = keys[membership.rank]
    store.set(mine, scope.seal(mine, {"value": value}), deadline.left())
    texts = None
    while texts is None:
        try:
            texts = store.wait(keys, min(LOOK, deadline.left()))
        except OpTimeout:
            reason = failure.read(1.0)
            if reason is None and (found := _absence(store, membership, keys, deadline, silence)) is not None:
                reason, _ = failure.write(found, 1.0)
            if reason is None:
                continue
            error, absent = _error(membership, failure.document(reason))
            failure.leave(size - absent, 1.0, keys)
            raise error from None
    values = []
    for rank, (key, text) in enumerate(zip(keys, texts, strict=True)):
        document, authentic = scope.unseal(key, text)
        if not authentic or document is None or "value" not in document:
            raise AuthError(f"group {membership.name!r}: what is under {key!r} was not written by rank {rank}")
        values.append(document["value"])
    failure.leave(size, deadline.left(), keys)
    return values


def _absence(
    store: Store, membership: Membership, keys: list[str], deadline: Deadline, silence: float
) -> Mapping[str, Any] | None:
    """Why the exchange fails, as a document for all ranks; None if it is too early to give up."""
    late = [rank for rank, key in enumerate(keys) if store.get(key, 1.0) is None]
    ended = [rank for rank in late if membership.has_ended(rank)]
    if ended:
        return {"lost": True, "ranks": ended, "text": f"{ranks_text(ended)} ended"}
    if late and 0 < silence <= deadline.elapsed():
        return {"lost": True, "ranks": late, "text": f"{ranks_text(late)} did not answer for {silence:g} s"}
    if late and deadline.passed:
        text = f"{ranks_text(late)} did not answer within {deadline.elapsed():.1f} s"
        return {"lost": False, "ranks": late, "text": text}
    return None


def _error(membership: Membership, reason: Mapping[str, Any] | None) -> tuple[CollectiveError, int]:
    """The error for the `reason` that a rank wrote (None: another process did), and how many ranks are absent."""
    match reason:
        case {"lost": bool(lost), "ranks": list(ranks), "text": str(text)} if all(isinstance(r, int) for r in ranks):
            message = f"group {membership.name!r} has formed, but {text}"
            return (PeerLost if lost else OpTimeout)(message, ranks), len(ranks)
    return AuthError(f"group {membership.name!r}: the reason to give up in its store is not from one of its ranks"), 0
