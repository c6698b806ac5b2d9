"""What leader and members of a session share: one rank's identity, its keys in the store, and its errors.

A session is one attempt of the function `form` to form a group. `group` explains the other terms.

Invariant: a rank that leaves `form` with an error removes its keys from the store, if the store still answers. All keys
begin with the scope (job and epoch). All keys but the notice also contain the session's random name.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from collectives.native.errors import AuthError, CollectiveError, ConfigMismatch, OpTimeout, PeerLost, StoreError

from . import _process
from ._checks import Deadline, Unreachable, parts
from ._records import MAX_BEFORE, VERSION, Hello, Notice, Scope, parse_hello, parse_notice, ranks_text
from ._roster import Entry, Roster, shared
from .store import Store

_ERRORS: Mapping[str, type[CollectiveError]] = {"config": ConfigMismatch, "auth": AuthError, "store": StoreError}
_LONGEST_TEXT = 20_000  # characters of a verdict that are shown
_PATIENCE = 4.0  # seconds that one exchange with the store may take
_SIGN_OFF = 2.0  # seconds for which a rank of a formed group tries to say so; others may wait for it
_PAUSE = 0.02  # seconds before an exchange is repeated
BATCH = 64  # slots that are read by one request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Formed:
    """A group that has formed.

    `session` is the random name of the attempt by which the group formed. `roster` has the group's members, by rank.
    `leader` is the rank that led the attempt. `notice` is the final content of the store key under which the leader
    published the outcome; only the leader keeps it.
    """

    session: str
    roster: Roster
    leader: int
    notice: bytes


class HeartbeatMonitor:
    """Watches the heartbeat of another process: a counter that the process increments as long as it lives.

    The heartbeat has stopped if the counter does not change for `patience` seconds and for `QUIET` checks in a row.
    """

    QUIET = 6  # checks without a change: on a busy machine, time alone does not show that the process has ended

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: bytes | None = None
        self._since = time.monotonic()
        self._looks = 0
        self._quiet = 0
        self.beats = 0

    def beat(self, value: bytes | None) -> bool:
        """Note the current `value` of a counter that another process increments as its heartbeat.

        Return True if `value` differs from the value at the previous call. `value` is None if the counter does not
        exist in the store.
        """
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
    """A rank that led an attempt to form a group, and whose heartbeat then stopped for `seconds`.

    `place` is the rank's host and process id, for error messages.
    """

    place: str
    seconds: float


class Participant:
    """The state of one call of `rendezvous.group.form`, by which a rank forms a group with the other ranks.

    It has the identity of the rank, the store, the deadline of the call, and the store keys that the rank has to
    delete.
    """

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
        """Like `Store.wait`: wait up to `timeout` seconds until all `keys` exist in the store, and return their values.

        Raises: OpTimeout if keys are missing after `timeout` seconds, or if the store is unreachable. In both cases the
        caller calls this method again.
        """
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
        """Delete the store keys that this rank has written for an attempt to form a group.

        Call it when the rank leaves this attempt, in order to take part in the next attempt.
        """
        if self.leaving:
            self.delete(self.leaving)
            self.leaving = []

    def vanish(self) -> None:
        """Delete this rank's keys from the store after an error or an interrupt. Errors of the store are ignored."""
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
        """Return the bytes of a notice: the value in the store that describes an attempt to form a group.

        `state` is "open" (ranks may join), "closed" (the group has formed) or "failed". `session` is the name of the
        attempt. `roster` is the list of members if the group has formed, and `verdict` the reason if the attempt has
        failed. `before` is the notice of an earlier attempt, which the new notice replaces. It is given if the store
        may still have keys of the earlier attempt.
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
            "roster": [] if roster is None else Roster.of(roster).data,
            "verdict": verdict or {},
            "before": [] if before is None else [[before.session, before.size], *before.before][:MAX_BEFORE],
        }
        return self.scope.seal("notice", document)

    def read_notice(self, value: bytes | None) -> tuple[Notice | None, bool]:
        """Decode a notice: the value in the store that describes an attempt to form a group.

        Return the notice, or None if `value` is no valid notice. Also return whether its HMAC shows that a process with
        this job's secret wrote it.
        """
        document, authentic = self.scope.unseal("notice", value or b"")
        return parse_notice(document), authentic

    def arrive(self, session: str, *, leader_is_authentic: bool = True) -> str | None:
        """Join the attempt `session` to form a group, by writing a store key that belongs to this rank number.

        If another process that knows the secret has already written this key, return an error text, otherwise None. A
        value without a valid HMAC is overwritten, unless `leader_is_authentic` is False. In that case this rank's
        secret differs from the leader's secret, and may be the wrong one.
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

    def arrived(self, session: str, ranks: Sequence[int] | None = None) -> list[Hello]:
        """Return what `ranks`, or all ranks, have written to their store keys in order to join the attempt `session`.

        Ranks that have not come, or whose values have no valid HMAC, are left out. Takes one request to the store for
        each `BATCH` ranks if all of them have come.
        """
        found = []
        for part in parts(range(self.me.size) if ranks is None else ranks, BATCH):
            keys = [self.scope.key(session, slot(rank)) for rank in part]
            try:
                values: Iterable[bytes | None] = self.wait(keys, 0.0)
            except OpTimeout:
                values = map(self.get, keys)
            hellos = (read_hello(self.scope, session, rank, value) for rank, value in zip(part, values, strict=True))
            found += [hello for hello in hellos if hello is not None]
        return found

    def hello(self, session: str, rank: int) -> Hello | None:
        """Return what `rank` wrote to its store key in order to join the attempt `session` to form a group.

        Return None if the key does not exist, or if its value has no valid HMAC.
        """
        return read_hello(self.scope, session, rank, self.get(self.scope.key(session, slot(rank))))

    def flag(self, session: str, complaint: Mapping[str, Any]) -> None:
        """Publish `complaint`, the reason why this rank rejects the attempt `session` to form a group.

        If several ranks reject an attempt, only the first complaint is stored. The leader then makes all ranks fail
        with this complaint.
        """
        key = self.scope.key(session, "flag")
        value = self.scope.seal(f"{session}/flag", complaint)
        if self.compare_set(key, None, value) == value:
            self.leaving.append(key)

    # -- how a session ends

    def outcome(self, session: str, value: bytes) -> Formed:
        """Return the group that the attempt `session` has formed, or raise the error with which the attempt failed.

        `value` is the outcome of the attempt, as its leader has published it in the store.
        """
        notice, authentic = self.read_notice(value)
        if notice is None and self.scope.secret is None:
            raise StoreError(f"{self.who()}: {self.foreign(self.scope.key(session, 'go'))}")
        if not authentic or notice is None or notice.session != session:
            self.no_secret(notice)
        self.leaving = []  # the last member, or after a failure the leader, removes all keys
        roster = notice.roster
        if roster is None:
            self._sign_off(notice, value)
            self.fail(notice.verdict)
        if not self.is_member(notice):
            raise ConfigMismatch(
                f"{self.who()}: another process is rank {self.me.rank} of the group that has formed; "
                "this one was started twice, or two jobs use one name: give them different names or run ids"
            )
        self._sign_off(notice, value)
        if self.scope.secret is None and not roster.check():  # no HMAC shows that a rank of this library wrote it
            raise StoreError(f"{self.who()}: {self.foreign(self.scope.key(session, 'go'))}")
        return Formed(session, shared(roster), notice.rank, value if notice.rank == self.me.rank else b"")

    def is_member(self, notice: Notice) -> bool:
        """Return whether the group described by `notice` has formed and includes this process.

        Each call of `form` draws a random number, the nonce. The nonce shows whether a member with this rank number is
        this process or another process.
        """
        roster = notice.roster
        return roster is not None and self.me.rank < len(roster) and roster.nonce(self.me.rank) == self.me.nonce

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
            elif reported == 1 and self.get(self.scope.key(notice.session, "go")) is None:
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
        """Return the description of a failure for all ranks: the ranks in `gone` were lost while the group formed.

        `gone` maps each lost rank to its host and process id, as text. `what` says what happened to the lost ranks,
        such as "ended".
        """
        names = ", ".join(f"rank {rank} ({place})" for rank, place in sorted(gone.items()))
        return {"kind": "lost", "lost": sorted(gone), "text": f"{names} {what} while the group formed"}

    def no_secret(self, notice: Notice | None) -> NoReturn:
        leader = f" of rank {notice.rank} ({notice.place})" if notice is not None else ""
        raise AuthError(
            f"{self.who()}: does not share the secret{leader}, or one of the two has none; give all ranks the same"
        )

    def foreign(self, key: str) -> str:
        """Return the error text for a store key whose value was written by another program, not by a rank."""
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
    """Decode `value`, which `rank` wrote to its store key in order to join the attempt `session` to form a group.

    Return None if `value` is from another rank, or from a process without the job's secret. `scope` has the secret.
    """
    document, authentic = scope.unseal(f"{session}/{slot(rank)}", value or b"")
    hello = parse_hello(document)
    return hello if authentic and hello is not None and hello.rank == rank else None


def session_keys(scope: Scope, session: str, size: int) -> list[str]:
    """Return the store keys that ranks write during the attempt `session` to form a group of `size` ranks.

    The key `notice`, which all attempts share, is not among them. `scope` has the prefix of all keys of the job.
    """
    names = [*(slot(rank) for rank in range(size)), "flag", "beat", "go", "left"]
    return [scope.key(session, name) for name in names]
