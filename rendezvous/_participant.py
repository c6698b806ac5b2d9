"""What leader and members of a session share: one rank's identity, its keys in the store, and its errors.

A session is one attempt of the function `form` to form a group. `group` explains the other terms.

Invariant: a rank that leaves `form` with an error removes its keys from the store, if the store still answers. All keys
begin with the scope (job and epoch). All keys but the notice also contain the session's random name.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from collectives.native.errors import AuthError, CollectiveError, ConfigMismatch, OpTimeout, PeerLost, StoreError

from . import _process
from ._checks import Deadline, Unreachable
from ._records import MAX_BEFORE, VERSION, Entry, Hello, Notice, Scope, parse_hello, parse_notice, ranks_text
from .store import Store

_ERRORS: Mapping[str, type[CollectiveError]] = {"config": ConfigMismatch, "auth": AuthError, "store": StoreError}
_LONGEST_TEXT = 20_000  # characters of a verdict that are shown
_PATIENCE = 4.0  # seconds that one exchange with the store may take
_SIGN_OFF = 2.0  # seconds for which a rank of a formed group tries to say so; others may wait for it
_PAUSE = 0.02  # seconds before an exchange is repeated

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Formed:
    """A group that has formed: the name of its session (the attempt to form it), and its members by rank.

    `leader` is the rank that has led the session, `notice` the final value of the store key that describes the session.
    """

    session: str
    roster: tuple[Entry, ...]
    leader: int
    notice: bytes


class Pulse:
    """Watches a heartbeat: a counter that another process advances as long as that process lives."""

    QUIET = 6  # checks without a change: on a busy machine, time alone does not show that the process has ended

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: bytes | None = None
        self._since = time.monotonic()
        self._looks = 0
        self._quiet = 0
        self.beats = 0

    def beat(self, value: bytes | None) -> bool:
        """Check the current `value` of the heartbeat's counter; True if it has changed since the previous check."""
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


@dataclass(slots=True)
class Silent:
    """A rank that led an attempt to form a group, and then was silent for `seconds`, while this process watched."""

    place: str
    seconds: float


class Participant:
    """The state of one call of `form`, by which a rank forms a group."""

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
        silence: float = 0.0,
    ) -> None:
        self.store = store
        self.scope = scope
        self.deadline = Deadline(timeout)
        self.settle = settle
        self.silence = silence
        self.began = _process.now()
        self.silent: dict[int, Silent] = {}  # leaders that were alive before they fell silent, by rank
        self.me = Hello(rank, size, secrets.token_hex(16), fingerprint, _process.place(), _process.origin(), record)
        self.leaving: list[str] = []  # keys to remove if this call ends before the session does
        self.leading: bytes | None = None  # the content of the notice while this rank leads

    # -- the store: each exchange has up to 4 seconds, and at least 1, also after the deadline, to clean up

    def _patient(self) -> float:
        return min(_PATIENCE, max(1.0, self.deadline.left()))

    def _repeat(self, call: Callable[[float], T]) -> T:
        """The result of `call(timeout)`, which is repeated while the store is unreachable.

        A call that fails may have taken effect, so it must be one that does no harm if it takes effect twice.
        """
        deadline = Deadline(self._patient())
        while True:
            try:
                return call(deadline.left())
            except Unreachable:
                if deadline.passed:
                    raise
                time.sleep(_PAUSE)

    def wait(self, keys: list[str], timeout: float) -> list[bytes]:
        """As `Store.wait`, but OpTimeout also if the store is unreachable: callers then repeat the short wait."""
        try:
            return self.store.wait(keys, timeout)
        except Unreachable as error:
            raise OpTimeout(str(error)) from error

    def get(self, key: str) -> bytes | None:
        return self._repeat(lambda timeout: self.store.get(key, timeout))

    # Values that this rank writes have its nonce or a session's name, or are the same each time. So to write them again
    # does no harm.

    def set(self, key: str, value: bytes) -> None:
        self._repeat(lambda timeout: self.store.set(key, value, timeout))

    def compare_set(self, key: str, expected: bytes | None, value: bytes | None) -> bytes | None:
        return self._repeat(lambda timeout: self.store.compare_set(key, expected, value, timeout))

    def delete(self, keys: list[str]) -> None:
        self._repeat(lambda timeout: self.store.delete(keys, timeout))

    def clean(self, session: str, size: int) -> None:
        self.leaving = []
        self.delete(session_keys(self.scope, session, size))

    def withdraw(self) -> None:
        """Remove this rank's store keys of a session (an attempt to form a group) that it leaves."""
        if self.leaving:
            self.delete(self.leaving)
            self.leaving = []

    def vanish(self) -> None:
        """Remove this rank's keys from the store after an error or an interrupt."""
        with contextlib.suppress(StoreError):
            if self.leaving:
                self.store.delete(self.leaving, 1.0)
            if self.leading is not None:
                self.store.compare_set(self.scope.notice, self.leading, None, 1.0)

    # -- notice, slots, flags

    def notice(
        self,
        state: str,
        session: str,
        *,
        roster: list[Entry] | None = None,
        verdict: Mapping[str, Any] | None = None,
        before: Notice | None = None,
    ) -> bytes:
        """The bytes of a notice: the store's value that describes an attempt to form a group.

        `state`: "open", "closed" or "failed". `session`: the attempt. `before`: the notice that it replaces, if store
        keys of that attempt are still to be removed. `roster`: the list of members, once the group has formed.
        `verdict`: why it has failed.
        """
        document = {
            "v": VERSION,
            "state": state,
            "session": session,
            "rank": self.me.rank,
            "size": self.me.size,
            "fingerprint": self.me.fingerprint,
            "place": self.me.place,
            "origin": self.me.origin,
            "opened": _process.now(),
            "roster": [entry.document() for entry in roster or []],
            "verdict": verdict or {},
            "before": [] if before is None else [[before.session, before.size], *before.before][:MAX_BEFORE],
        }
        return self.scope.seal("notice", document)

    def read_notice(self, value: bytes | None) -> tuple[Notice | None, bool]:
        """The notice in the bytes `value`, which describes an attempt to form a group, and whether it is authentic.

        The notice is None if `value` is no valid notice.
        """
        document, authentic = self.scope.unseal("notice", value or b"")
        return parse_notice(document), authentic

    def arrive(self, session: str, *, leader_is_authentic: bool = True) -> str | None:
        """Take this rank's slot, a store key; returns an error text if another process with the secret has it.

        Otherwise returns None. A value in the slot without the HMAC of this rank's secret is replaced. But if the
        leader's notice has no such HMAC either, the value stays, because this rank's secret may be the wrong one.
        """
        key, name = self.scope.key(session, slot(self.me.rank)), f"{session}/{slot(self.me.rank)}"
        hello = self.scope.seal(name, self.me.document())
        expected = None
        while (arrived := self.compare_set(key, expected, hello)) != hello:
            document, authentic = self.scope.unseal(name, arrived or b"")
            rival = parse_hello(document)
            if authentic and rival is not None:
                return (
                    f"rank {self.me.rank} was started twice, by {rival.place} and by {self.me.place}; "
                    "if these are two jobs, give them different names or run ids"
                )
            if not leader_is_authentic:
                return None
            expected = arrived
        self.leaving.append(key)
        return None

    def arrived(self, session: str) -> list[Hello]:
        return [hello for rank in range(self.me.size) if (hello := self.hello(session, rank)) is not None]

    def hello(self, session: str, rank: int) -> Hello | None:
        """What that rank has written to its slot, a store key, to join; None if nothing, or not with the secret."""
        return read_hello(self.scope, session, rank, self.get(self.scope.key(session, slot(rank))))

    def flag(self, session: str, complaint: Mapping[str, Any]) -> None:
        """Object to `session`, an attempt to form a group, with `complaint`.

        The leader of the session reports the first objection to all ranks.
        """
        key = self.scope.key(session, "flag")
        value = self.scope.seal(f"{session}/flag", complaint)
        if self.compare_set(key, None, value) == value:
            self.leaving.append(key)

    # -- how a session ends

    def outcome(self, session: str, value: bytes) -> Formed:
        """The group that `session` has formed, read from its last description, `value`; raises the error if none."""
        notice, authentic = self.read_notice(value)
        if notice is None and self.scope.secret is None:
            raise StoreError(f"{self.who()}: {self.foreign(self.scope.key(session, 'go'))}")
        if not authentic or notice is None or notice.session != session:
            self.no_secret(notice)
        roster = notice.roster
        self.leaving = []  # the last member, or after a failure the leader, removes all keys
        if notice.state != "closed":
            self._sign_off(notice, value)
            self.fail(notice.verdict)
        if not self.is_member(notice):
            raise ConfigMismatch(
                f"{self.who()}: another process is rank {self.me.rank} of the group that has formed; "
                "this one was started twice, or two jobs use one name: give them different names or run ids"
            )
        self._sign_off(notice, value)
        return Formed(session, roster, notice.rank, value)

    def is_member(self, notice: Notice) -> bool:
        """Whether the members listed in `notice` include this call of `form`, not another process with its rank."""
        own = notice.roster[self.me.rank : self.me.rank + 1]
        return notice.state == "closed" and [entry.nonce for entry in own] == [self.me.nonce]

    def _sign_off(self, notice: Notice, value: bytes) -> None:
        """Declare that this rank no longer needs the session's keys; the last member that does so removes them."""
        left = self.scope.key(notice.session, "left")
        # the session has ended, so errors of the store do not matter
        with contextlib.suppress(StoreError):
            reported = self.store.add(left, 1, _SIGN_OFF)  # not repeated: it would count twice
            if notice.state == "closed" and reported >= notice.size:
                # The notice is removed last: if this process is killed before, the notice still names the session.
                self.clean(notice.session, notice.size)
                self.compare_set(self.scope.notice, value, None)
            elif self.get(self.scope.key(notice.session, "go")) is None:
                self.delete([left])  # the keys were removed before, and `add` has made this key again

    def fail(self, verdict: Mapping[str, Any]) -> NoReturn:
        kind, text = verdict.get("kind"), verdict.get("text")
        message = f"{self.who()}: {str(text)[:_LONGEST_TEXT]}"
        if kind == "late":
            raise OpTimeout(message, self._ranks(verdict.get("late")))
        if kind == "lost":
            raise PeerLost(message, self._ranks(verdict.get("lost")))
        raise _ERRORS.get(str(kind), ConfigMismatch)(message)

    def _ranks(self, value: Any) -> list[int]:
        ranks = value if isinstance(value, list) else []
        return [rank for rank in ranks if isinstance(rank, int) and 0 <= rank < self.me.size]

    def lost(self, gone: Mapping[int, str], what: str) -> Mapping[str, Any]:
        """Why no group forms: ranks that had begun to join are lost.

        `gone`: the host and process of each lost rank. `what`: what happened to them, as text.
        """
        names = ", ".join(f"rank {rank} ({place})" for rank, place in sorted(gone.items()))
        return {"kind": "lost", "lost": sorted(gone), "text": f"{names} {what} while the group formed"}

    def no_secret(self, notice: Notice | None) -> NoReturn:
        leader = f" of rank {notice.rank} ({notice.place})" if notice is not None else ""
        raise AuthError(
            f"{self.who()}: does not share the secret{leader}, or one of the two has none; give all ranks the same"
        )

    def foreign(self, key: str) -> str:
        """The error text for a store key whose value no rank has written."""
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


def slot(rank: int) -> str:
    return f"slot/{rank}"


def read_hello(scope: Scope, session: str, rank: int, value: bytes | None) -> Hello | None:
    """What rank `rank` wrote to its slot (its store key) to join: decoded from `value`.

    None unless that rank wrote it, with the secret. `session`: the attempt to form a group.
    """
    document, authentic = scope.unseal(f"{session}/{slot(rank)}", value or b"")
    hello = parse_hello(document)
    return hello if authentic and hello is not None and hello.rank == rank else None


def session_keys(scope: Scope, session: str, size: int) -> list[str]:
    """All store keys that a session (an attempt to form a group) uses, except the key `notice`, which describes it."""
    names = [*(slot(rank) for rank in range(size)), "flag", "beat", "go", "left"]
    return [scope.key(session, name) for name in names]
