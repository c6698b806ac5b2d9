"""The first failure of a rank of a group that has formed, while links are opened: all ranks raise its error.

A rank that fails in this time leaves, and the ranks that wait for it fail too. There may be no link over which it could
tell them why. So each rank that knows the failure at first hand tries to write it to the store; the first succeeds, and
all others read it. At first hand a rank knows its own errors, and which processes of its machine have ended. Other
losses and timeouts are not published: they say what a rank has seen of others, and a rank that is cut off sees all
others go.

Invariant: a rank publishes its error before it closes its listeners. So a rank that fails because it cannot connect to
one that has left finds that rank's error, or an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from collectives.native import errors
from collectives.native.errors import CollectiveError, OpTimeout, PeerLost, StoreError

from . import _process
from ._checks import Deadline, Unreachable
from ._reason import FirstReason
from ._records import ranks_text
from .group import Membership
from .store import Store

_LONGEST: Final = 2000  # characters of a message
_LOOK: Final = 0.05  # seconds between looks at the ranks' processes
_KINDS: Final[Mapping[str, type[CollectiveError]]] = {
    kind.__name__: kind for kind in (errors.TransportUnavailable, errors.ConfigMismatch, errors.AuthError)
}


def first_cause(store: Store, membership: Membership, error: BaseException, timeout: float) -> BaseException:
    """Return the error that this rank has to raise after `error` kept it from opening its connections.

    All ranks of the group `membership` raise the first error of any rank. If `error` is the first, it is published in
    the store and returned. Otherwise another rank has published the first error. The function then returns the first
    error, with a text that names the other rank. Other cases:

    - `error` is PeerLost or OpTimeout: it is not published, and is returned if no other rank publishes an error. For
      PeerLost, the function waits for another rank's error for up to `timeout`.
    - `error` is PeerLost, and processes of ranks on this machine have ended: they are the first error, unless another
      rank has published one. If none of these ranks is in `error`, PeerLost that names them takes its place.
    - `error` is no CollectiveError: it is published, and returned unchanged even if another error was the first.
    - The store is unreachable: StoreError, or `error` if that is no CollectiveError.
    - Another error occurs while the store is used: `error` is returned, and other ranks may not know it.
    - What is in the store cannot be the error of a rank of this group: `error` is returned.

    `timeout`, in seconds, also limits each exchange with the store. Raises nothing.
    """
    own = not isinstance(error, CollectiveError)
    try:
        if isinstance(error, PeerLost | OpTimeout):
            error, found = _witnessed(store, membership, error, timeout)
        else:
            found = _publish(store, membership, _document(membership, error, [membership.rank]), timeout)
    except Unreachable as lost:
        return error if own else _store_lost(membership, lost)
    except (StoreError, OSError):  # such as no file descriptors: others see that this rank leaves, and not why
        return error
    cause = None if own or found is None else _decode(found, membership)
    return error if cause is None else cause


def _witnessed(
    store: Store, membership: Membership, error: CollectiveError, timeout: float
) -> tuple[CollectiveError, Mapping[str, Any] | None]:
    """The error of a rank that has lost others, and what another rank has published before, else None.

    A rank that this one has lost may have given up because of a third one. Its process runs then, and it has published
    why, or the third one's process has ended. That becomes known a moment after its sockets were closed.
    """
    failure = FirstReason(store, membership, "failed")
    deadline = Deadline(timeout if isinstance(error, PeerLost) else 0.0)
    while True:
        ended = [rank for rank in range(membership.size) if membership.has_ended(rank)]
        if ended and isinstance(error, PeerLost):
            if not set(ended) & set(error.ranks):
                text = f"group {membership.name!r} has formed, but {ranks_text(ended)} ended while links were opened"
                error = PeerLost(text, ended)
            return error, _publish(store, membership, _document(membership, error, list(error.ranks)), timeout)
        found = failure.read(timeout) if deadline.passed else failure.wait(min(_LOOK, deadline.left()))
        if found is not None:
            return error, _known(failure, found, membership, timeout)
        if deadline.passed:
            return error, None


def _document(membership: Membership, error: BaseException, ranks: Sequence[int]) -> Mapping[str, Any]:
    return {
        "rank": membership.rank,
        "ranks": ranks,
        "place": _process.place(),
        "kind": type(error).__name__,
        "text": (str(error) or type(error).__name__)[:_LONGEST],
    }


def _publish(
    store: Store, membership: Membership, document: Mapping[str, Any], timeout: float
) -> Mapping[str, Any] | None:
    """Returns what another rank of the group has published before, else None."""
    failure = FirstReason(store, membership, "failed")
    first, is_own = failure.write(document, timeout)
    found = _known(failure, first, membership, timeout)
    return None if is_own else found


def _known(failure: FirstReason, published: bytes, membership: Membership, timeout: float) -> Mapping[str, Any] | None:
    """What is `published`; all ranks but those that it says to have ended get to know it, this one now."""
    document, others = failure.document(published), membership.size
    match document:
        case {"kind": PeerLost.__name__, "ranks": list(ended)}:
            others -= len(ended)
    failure.leave(others, timeout)
    return document


def _decode(published: Mapping[str, Any], membership: Membership) -> BaseException | None:
    """The error that another rank has `published`; None if no rank of this group can have written it."""
    match published:
        case {
            "rank": int(rank),
            "ranks": list(ranks),
            "place": str(place),
            "kind": str(kind),
            "text": str(text),
        } if all(isinstance(one, int) and 0 <= one < membership.size for one in [rank, *ranks]):
            who, text = f"rank {rank} ({_printable(place, 300)})", _printable(text, _LONGEST)
            if kind == PeerLost.__name__:
                return PeerLost(f"{text}; {who} has reported it", ranks)
            # A text that names a rank says why all ranks give up.
            message = text if text.startswith("rank ") else f"{who} could not open its links: {text}"
            return _KINDS[kind](message) if kind in _KINDS else PeerLost(f"{message} ({_printable(kind, 100)})", [rank])
    return None


def _store_lost(membership: Membership, lost: Unreachable) -> StoreError:
    error = StoreError(
        f"group {membership.name!r} has formed, but its store failed before all ranks had read the roster: {lost}"
    )
    error.__cause__ = lost
    return error


def _printable(text: str, longest: int) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text[:longest])
