"""The first failure of a rank of a group that has formed, while links are opened: all ranks raise its error.

A rank that fails in this time leaves, and the ranks that wait for it fail too. There may be no link over which it could
tell them why. So each rank that fails by itself tries to create one key of the store, `<session>/failed`; the first
succeeds, and all others read it. PeerLost and OpTimeout are not published: they say what a rank has seen of others, and
a rank that is cut off sees all others go.

Invariant: a rank publishes its error before it closes its listeners. So a rank that fails because it cannot connect to
one that has left finds that rank's error, or an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from collectives.native import errors
from collectives.native.errors import CollectiveError, OpTimeout, PeerLost, StoreError

from . import _process
from ._checks import Unreachable
from .group import Membership
from .store import Store

_LONGEST: Final = 2000  # characters of a message
_KINDS: Final[Mapping[str, type[CollectiveError]]] = {
    kind.__name__: kind for kind in (errors.TransportUnavailable, errors.ConfigMismatch, errors.AuthError)
}


def first_cause(store: Store, membership: Membership, error: BaseException, timeout: float) -> BaseException:
    """The error that this rank has to raise after `error`, which is published if it is the first of its group.

    That is `error` itself, or the first error of another rank, or StoreError if the store cannot be reached any more:
    then other ranks have left because they could not read who is in the group. An error that is no CollectiveError is
    this rank's own, and stays. Raises nothing.
    """
    own = not isinstance(error, CollectiveError)
    try:
        found = _publish(store, membership, error, timeout)
    except Unreachable as lost:
        return error if own else _store_lost(membership, lost)
    except (StoreError, OSError):  # such as no file descriptors: others see that this rank leaves, and not why
        return error
    cause = None if own or found is None else _decode(found, membership)
    return error if cause is None else cause


def _publish(store: Store, membership: Membership, error: BaseException, timeout: float) -> bytes | None:
    """Returns what another rank has published before, else None."""
    scope, session = membership.scope, membership.session
    failed, known = scope.key(session, "failed"), scope.key(session, "known")
    if isinstance(error, PeerLost | OpTimeout):
        found, mine = store.get(failed, timeout), None
        if found is None:
            return None
    else:
        document = {
            "rank": membership.rank,
            "place": _process.place(),
            "kind": type(error).__name__,
            "text": (str(error) or type(error).__name__)[:_LONGEST],
        }
        mine = scope.seal(f"{session}/failed", document)
        found = store.compare_set(failed, None, mine, timeout)
    if store.add(known, 1, timeout) >= membership.size:
        store.delete([failed, known], timeout)
    return None if found == mine else found


def _decode(value: bytes, membership: Membership) -> BaseException | None:
    """The error that another rank has published as `value`; None if no rank of this group can have written it."""
    document, authentic = membership.scope.unseal(f"{membership.session}/failed", value)
    match document if authentic else None:
        case {"rank": int(rank), "place": str(place), "kind": str(kind), "text": str(text)} if (
            0 <= rank < membership.size
        ):
            who = f"rank {rank} ({_printable(place, 300)})"
            message = f"{who} could not open its links: {_printable(text, _LONGEST)}"
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
