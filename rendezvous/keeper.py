"""Publishes the roster again if the store has lost it, until all ranks of the group are known to have read it.

A store may lose its keys when some ranks have read that the group has formed, and others have not. The latter start a
new session, and would wait there in vain: the former have returned from `form`, and do not look at the store any more.
So the leader looks after a while, if not all ranks are linked by then.

Invariant: only an open notice is replaced, and only if a rank of the roster waits in its session. The nonce shows that
the rank is still in the call of `form` in which it was accepted, so it has not read the outcome.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from collectives.native.errors import StoreError

from ._participant import read_hello, slot
from ._records import parse_notice
from .group import Membership
from .store import Store

FIRST: Final = 0.5  # seconds until the first look: usually all ranks are linked before
_PERIOD: Final = 0.25  # seconds between looks
_ANSWER: Final = 0.5  # seconds for each exchange with the store


class Keeper:
    """A thread that protects the list of a group's members against a restart of the store, which loses all keys.

    The thread runs on one rank, the one that led the forming of the group. If the list is lost and a member still needs
    it, the thread writes the list to the store again. The thread runs until `stop` is called.
    """

    def __init__(self, store: Store, membership: Membership) -> None:
        self._store = store
        self._membership = membership
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collectives-roster", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread that watches the list of a group's members to end, and wait until it has ended.

        Idempotent. Raises nothing.
        """
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        pause = FIRST
        while not self._over.wait(pause):
            pause = _PERIOD
            with contextlib.suppress(StoreError):
                self._look()

    def _look(self) -> None:
        scope = self._membership.scope
        value = self._store.get(scope.notice, _ANSWER)
        if value is None or value == self._membership.notice:
            return
        document, authentic = scope.unseal("notice", value)
        notice = parse_notice(document)
        if not authentic or notice is None or notice.state != "open" or notice.session == self._membership.session:
            return
        ours = parse_notice(scope.unseal("notice", self._membership.notice)[0])
        if ours is None or ours.roster is None:
            return
        for rank in range(ours.size):
            found = self._store.get(scope.key(notice.session, slot(rank)), _ANSWER)
            hello = read_hello(scope, notice.session, rank, found)
            if hello is not None and hello.nonce == ours.roster.nonce(rank):
                self._store.compare_set(scope.notice, value, self._membership.notice, _ANSWER)
                return
