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
    """The reason why the ranks of a group abandon a step that all must do together.

    The first rank to abandon the step writes its reason to the store, and nobody overwrites it. All ranks read this
    reason. `what` names the step, and is part of the names of the store keys.
    """

    def __init__(self, store: Store, membership: Membership, what: str) -> None:
        self._store = store
        self._scope = membership.scope
        self._key = self._scope.key(membership.session, what)
        self._known = self._scope.key(membership.session, f"{what}-known")

    def read(self, timeout: float) -> bytes | None:
        """Read from the store why the group abandons a joint step.

        Return the text that a rank has written, as bytes; None if no rank has abandoned the step. `timeout` is in
        seconds. Raises: StoreError.
        """
        return self._store.get(self._key, timeout)

    def wait(self, timeout: float) -> bytes | None:
        """Wait up to `timeout` seconds until a rank has written to the store why it abandons a joint step of the group.

        Return the reason as bytes, or None if no rank has written one. Raises: StoreError.
        """
        try:
            return self._store.wait([self._key], timeout)[0]
        except OpTimeout:
            return None

    def write(self, document: Mapping[str, Any], timeout: float) -> tuple[bytes, bool]:
        """Write `document` to the store, as the reason why this rank abandons a joint step of the group.

        If another rank has already written a reason, that reason stays. Return a pair: the reason that is in the store
        now, as bytes, and whether this reason is `document`. `timeout` is in seconds. Raises: StoreError.
        """
        mine = self._scope.seal(self._key, document)
        first = self._store.compare_set(self._key, None, mine, timeout) or mine  # never absent after this
        return first, first == mine

    def document(self, reason: bytes) -> Mapping[str, Any] | None:
        """Decode `reason`, in which a rank says why it abandons a joint step of the group.

        `reason` is the result of `read`, `wait` or `write`. Return a dict, or None if no rank of this group wrote
        `reason`.
        """
        document, authentic = self._scope.unseal(self._key, reason)
        return document if authentic else None

    def leave(self, others: int, timeout: float, keys: Iterable[str] = ()) -> None:
        """Record in the store that this rank knows how a joint step of the group has ended.

        `others`: the number of ranks that make such a record, including this rank. The last of these ranks deletes
        `keys`, and the reason for a failure, from the store. `timeout` is in seconds. Raises: StoreError.
        """
        if self._store.add(self._known, 1, timeout) >= others:
            self._store.delete([*keys, self._key, self._known], timeout)
