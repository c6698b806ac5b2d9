"""What host and guests of a session share: one rank's identity, its keys in the store, and how it fails.

Invariant: a rank that leaves `form` by an error has removed what it put into the store, as far as the store
still answers; whatever it wrote carries its scope and, but for the door, the session's random name.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from collectives.native.errors import AuthError, CollectiveError, ConfigMismatch, OpTimeout, StoreError

from . import _process
from ._checks import Deadline
from ._records import MAX_BEFORE, VERSION, Door, Hello, Scope, parse_door, parse_hello, ranks_text
from .store import Store

_ERRORS: Mapping[str, type[CollectiveError]] = {"config": ConfigMismatch, "auth": AuthError, "store": StoreError}
_LONGEST_TEXT = 20_000  # characters of a verdict that are shown


@dataclass(frozen=True, slots=True)
class Formed:
    """A group that has formed: its session and, by rank, nonces and records."""

    session: str
    nonces: tuple[str, ...]
    records: tuple[Mapping[str, Any], ...]


class Pulse:
    """Whether a value that someone alive keeps changing still changes."""

    QUIET = 6  # looks: if all of us are starved of time, the one we watch may be too

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: bytes | None = None
        self._since = time.monotonic()
        self._looks = 0
        self._quiet = 0
        self.beats = 0

    def beat(self, value: bytes | None) -> bool:
        """Take a look; True if the value changed since the look before."""
        changed = self._looks > 0 and value is not None and value != self._last
        if changed:
            self.beats += 1
            self._since, self._quiet = time.monotonic(), 0
        else:
            self._quiet += 1
        self._looks += 1
        self._last = value
        return changed

    @property
    def stopped(self) -> bool:
        return self._quiet >= self.QUIET and time.monotonic() - self._since >= self._patience


class Desk:
    """The state of one call of `form`."""

    def __init__(
        self,
        store: Store,
        scope: Scope,
        rank: int,
        size: int,
        fingerprint: str,
        record: Mapping[str, Any],
        timeout: float,
        settle: float | None,
    ) -> None:
        self.store = store
        self.scope = scope
        self.deadline = Deadline(timeout)
        self.settle = settle
        self.me = Hello(rank, size, secrets.token_hex(16), fingerprint, _process.place(), _process.origin(), record)
        self.leaving: list[str] = []  # keys to remove if this call ends before the session does
        self.hosting: bytes | None = None  # what the door says while this rank hosts

    # -- the store; each exchange gets a few seconds, and one even after the deadline, to clean up

    def _patient(self) -> float:
        return min(5.0, max(1.0, self.deadline.left()))

    def get(self, key: str) -> bytes | None:
        return self.store.get(key, self._patient())

    def set(self, key: str, value: bytes) -> None:
        self.store.set(key, value, self._patient())

    def add(self, key: str) -> int:
        return self.store.add(key, 1, self._patient())

    def compare_set(self, key: str, expected: bytes | None, value: bytes | None) -> bytes | None:
        return self.store.compare_set(key, expected, value, self._patient())

    def delete(self, keys: list[str]) -> None:
        self.store.delete(keys, self._patient())

    def clean(self, session: str, size: int) -> None:
        self.leaving = []
        self.delete(session_keys(self.scope, session, size))

    def withdraw(self) -> None:
        """Remove what we left in a session that we leave."""
        if self.leaving:
            self.delete(self.leaving)
            self.leaving = []

    def vanish(self) -> None:
        """Leave by an error, an interrupt included."""
        with contextlib.suppress(StoreError):
            if self.leaving:
                self.store.delete(self.leaving, 1.0)
            if self.hosting is not None:
                self.store.compare_set(self.scope.door, self.hosting, None, 1.0)

    # -- doors, seats, flags

    def door(
        self,
        state: str,
        session: str,
        *,
        roster: list[list[Any]] | None = None,
        verdict: Mapping[str, Any] | None = None,
        before: Door | None = None,
    ) -> bytes:
        """What to write on the door; `before` is the one it replaces, whose keys are still to be removed."""
        document = {
            "v": VERSION,
            "state": state,
            "session": session,
            "rank": self.me.rank,
            "size": self.me.size,
            "fingerprint": self.me.fingerprint,
            "place": self.me.place,
            "origin": self.me.origin,
            "roster": roster or [],
            "verdict": verdict or {},
            "before": [] if before is None else [[before.session, before.size], *before.before][:MAX_BEFORE],
        }
        return self.scope.seal("door", document)

    def read_door(self, value: bytes | None) -> tuple[Door | None, bool]:
        """The door, and whether it is authentic."""
        document, authentic = self.scope.unseal("door", value or b"")
        return parse_door(document), authentic

    def sit(self, session: str, *, host_is_authentic: bool = True) -> str | None:
        """Take our seat; if someone else who knows the secret has it, say who.

        A stranger at it has to make room, unless the host is as strange to us: then we are the stranger.
        """
        key, name = self.scope.key(session, seat(self.me.rank)), f"{session}/{seat(self.me.rank)}"
        hello = self.scope.seal(name, self.me.document())
        expected = None
        while (seated := self.compare_set(key, expected, hello)) != hello:
            document, authentic = self.scope.unseal(name, seated or b"")
            rival = parse_hello(document)
            if authentic and rival is not None:
                return (
                    f"rank {self.me.rank} was started twice, by {rival.place} and by {self.me.place}; "
                    "if these are two jobs, give them different names or run ids"
                )
            if not host_is_authentic:
                return None
            expected = seated
        self.leaving.append(key)
        return None

    def seated(self, session: str) -> list[Hello]:
        found = []
        for rank in range(self.me.size):
            value = self.get(self.scope.key(session, seat(rank)))
            document, authentic = self.scope.unseal(f"{session}/{seat(rank)}", value or b"")
            hello = parse_hello(document)
            if authentic and hello is not None and hello.rank == rank:
                found.append(hello)
        return found

    def flag(self, session: str, complaint: Mapping[str, Any]) -> None:
        """Object to the session; its host sees to it that everybody hears. The first one counts."""
        key = self.scope.key(session, "flag")
        value = self.scope.seal(f"{session}/flag", complaint)
        if self.compare_set(key, None, value) == value:
            self.leaving.append(key)

    # -- how a session ends

    def outcome(self, session: str, value: bytes) -> Formed:
        """What the door, or its copy, says of a session that this rank took part in; raises its verdict."""
        door, authentic = self.read_door(value)
        if door is None and self.scope.secret is None:
            raise StoreError(f"{self.who()}: {self.foreign(self.scope.key(session, 'go'))}")
        if not authentic or door is None or door.session != session:
            self.no_secret(door)
        roster = door.roster
        self.leaving = []  # the last member or the host cleans
        if door.state != "closed":
            self._sign_off(door, value)
            self.fail(door.verdict)
        if not self.is_member(door):
            raise ConfigMismatch(
                f"{self.who()}: another process is rank {self.me.rank} of the group that has formed; "
                "this one was started twice, or two jobs use one name: give them different names or run ids"
            )
        self._sign_off(door, value)
        return Formed(session, tuple(nonce for nonce, _ in roster), tuple(record for _, record in roster))

    def is_member(self, door: Door) -> bool:
        """Whether this call of `form`, and not another process with our rank, is on the roster."""
        nonces = [nonce for nonce, _ in door.roster]
        return door.state == "closed" and nonces[self.me.rank : self.me.rank + 1] == [self.me.nonce]

    def _sign_off(self, door: Door, value: bytes) -> None:
        """Say that this rank needs the session's keys no more; the last member removes them."""
        left = self.scope.key(door.session, "left")
        # the session has ended: a store that fails now fails nobody
        with contextlib.suppress(StoreError):
            told = self.add(left)
            if door.state == "closed" and told >= door.size:
                # the door last: who is killed in between leaves one that leads to what remains
                self.clean(door.session, door.size)
                self.compare_set(self.scope.door, value, None)
            elif self.get(self.scope.key(door.session, "go")) is None:
                self.delete([left])  # it was cleaned while we were away, and `add` has made the key anew

    def fail(self, verdict: Mapping[str, Any]) -> NoReturn:
        kind, text, late = verdict.get("kind"), verdict.get("text"), verdict.get("late")
        message = f"{self.who()}: {str(text)[:_LONGEST_TEXT]}"
        if kind == "late":
            ranks = late if isinstance(late, list) else []
            raise OpTimeout(message, [rank for rank in ranks if isinstance(rank, int) and 0 <= rank < self.me.size])
        raise _ERRORS.get(str(kind), ConfigMismatch)(message)

    def no_secret(self, door: Door | None) -> NoReturn:
        host = f" of rank {door.rank} ({door.place})" if door is not None else ""
        raise AuthError(
            f"{self.who()}: does not share the secret{host}, or one of the two has none; give all ranks the same"
        )

    def foreign(self, key: str) -> str:
        """What to say of a key that holds what no rank has written."""
        return (
            f"{self.store!r}: key {key!r} holds something that no rank of this library wrote; "
            "see who else uses this store, or give the job a secret, or a store of its own"
        )

    def late(self, missing: Iterable[int]) -> OpTimeout:
        ranks = sorted(missing)
        return OpTimeout(f"{self.who()}: {self.late_text(ranks)}", ranks)

    def late_text(self, missing: list[int]) -> str:
        who = f"{ranks_text(missing)} of {self.me.size} did not join" if missing else "the ranks did not agree"
        return f"{who} within {self.deadline.elapsed():.1f} s; see whether they run, or raise the join timeout"

    def who(self) -> str:
        return f"group {self.scope.name!r} (epoch {self.scope.epoch}), rank {self.me.rank} of {self.me.size}"


def seat(rank: int) -> str:
    return f"seat/{rank}"


def word(rank: int) -> str:
    return f"word/{rank}"


def session_keys(scope: Scope, session: str, size: int) -> list[str]:
    """All keys with which a session forms, but the door."""
    names = [*(seat(rank) for rank in range(size)), "flag", "beat", "go", "left"]
    return [scope.key(session, name) for name in names]


def exchange_keys(scope: Scope, session: str, size: int) -> list[str]:
    """Those of `group.exchange`, by rank, and the counter."""
    return [scope.key(session, name) for name in (*map(word, range(size)), "read")]
