"""The first reason for which a rank of a group gives up what all its ranks do together: the other ranks read it.

Invariant: the first that is written counts, and nobody replaces it. The last rank to know it removes its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from collectives.native.errors import OpTimeout

from .store import Store

if TYPE_CHECKING:
    from .group import Membership


class FirstReason:
    """Why the ranks of `membership` give up `what`, a part of two keys of the store."""

    def __init__(self, store: Store, membership: Membership, what: str) -> None:
        self._store = store
        self._scope = membership.scope
        self._key = self._scope.key(membership.session, what)
        self._known = self._scope.key(membership.session, f"{what}-known")

    def read(self, timeout: float) -> bytes | None:
        """The reason of the first rank that has given up; None if none has. Raises StoreError."""
        return self._store.get(self._key, timeout)

    def wait(self, timeout: float) -> bytes | None:
        """The same, but waits up to `timeout` seconds until a rank has given up."""
        try:
            return self._store.wait([self._key], timeout)[0]
        except OpTimeout:
            return None

    def write(self, document: Mapping[str, Any], timeout: float) -> tuple[bytes, bool]:
        """The first reason, and whether this rank has written it now. Raises StoreError."""
        mine = self._scope.seal(self._key, document)
        first = self._store.compare_set(self._key, None, mine, timeout) or mine  # never absent after this
        return first, first == mine

    def document(self, reason: bytes) -> Mapping[str, Any] | None:
        """What the `reason` says; None if no rank of this group wrote it."""
        document, authentic = self._scope.unseal(self._key, reason)
        return document if authentic else None

    def leave(self, others: int, timeout: float, keys: Iterable[str] = ()) -> None:
        """This rank knows the result. The last of `others` ranks to do so removes `keys` too. Raises StoreError."""
        if self._store.add(self._known, 1, timeout) >= others:
            self._store.delete([*keys, self._key, self._known], timeout)
