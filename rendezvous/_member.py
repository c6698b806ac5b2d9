"""A member of a session, one attempt to form a group: how it joins, or replaces a session that is over or dead.

The notice is the store key with the session's state; `group` explains the other terms.

Invariant: a value in the store leads to an error only if it was written while this rank was watching. If a rank
replaces the notice of a session that only seemed dead, this session cannot form a group any more.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from collectives.native.errors import OpTimeout, StoreError

from . import _process
from ._checks import Unreachable
from ._leader import AUTH_GRACE, Leader, sizes_text
from ._participant import Formed, HeartbeatMonitor, Participant, Silent
from ._records import VERSION, Hello, Notice

SLICE = 0.2  # seconds between checks of the leader, at first
WATCHERS = 64  # ranks that check the leader often
RARELY = 0.002  # seconds between checks of the leader by another rank, for each rank of the group
PATIENCE = 1.5  # seconds without a heartbeat after which a leader counts as dead
CLEARING = 3.0  # seconds that the members of a formed group have to read the roster
STARTING = 30.0  # seconds within which the ranks of one run begin to join
LAST_WORD = 0.7  # seconds that a rank which fails waits for the leader to publish the outcome


class Member:
    """One rank that takes part in forming a group: it joins an attempt of another rank, or starts and leads its own."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._patience = PATIENCE

    def run(self) -> Formed:
        """Form a group with the other ranks and return it. Raises the errors that `rendezvous.group.form` lists."""
        participant = self._participant
        try:
            while True:
                session = secrets.token_hex(16)
                mine = participant.notice("open", session)
                found = participant.compare_set(participant.scope.notice, None, mine)
                formed = (
                    Leader(participant, session, mine).run() if found in (mine, None) else self._visit(found or b"")
                )
                if formed is not None:
                    return formed
                if participant.deadline.passed:
                    raise participant.late(self._others())
        except Unreachable as error:  # nor could this rank remove its keys
            raise StoreError(f"{participant.who()}: {error}") from error
        except BaseException:
            participant.vanish()
            raise

    def _others(self) -> list[int]:
        return [rank for rank in range(self._participant.me.size) if rank != self._participant.me.rank]

    def _visit(self, found: bytes) -> Formed | None:
        """Act on the notice `found` in the store. Returns the group, or None if the notice has to be read again."""
        notice, authentic = self._participant.read_notice(found)
        if notice is not None and notice.state == "open":
            return self._join(found, notice, authentic)
        if notice is not None and authentic and self._participant.is_member(notice):
            # this rank gave up the leader at the moment when the leader accepted it
            self._announce(notice.session, found)
            return self._participant.outcome(notice.session, found)
        return self._watch(found, notice, authentic)

    def _watch(self, found: bytes, notice: Notice | None, authentic: bool) -> Formed | None:
        """Wait until another rank removes the notice of an ended session; replace the notice if this takes too long.

        If the session has failed and its leader still sends heartbeats, this rank raises the session's error, too.
        """
        participant = self._participant
        failed = notice is not None and notice.state == "failed"
        patience = self._patience if failed or notice is None else CLEARING
        heartbeat = HeartbeatMonitor(patience)
        until = time.monotonic() + patience
        pause = 0.002
        while time.monotonic() < until and not participant.deadline.passed:
            if failed and notice is not None:
                if _process.is_gone(notice.origin):
                    break
                if heartbeat.beat(participant.get(participant.scope.key(notice.session, "beat"))):
                    if not authentic:
                        participant.no_secret(notice)
                    participant.fail(notice.verdict)
            time.sleep(min(pause, participant.deadline.left()))
            pause = min(2 * pause, 0.05)
            if participant.get(participant.scope.notice) != found:
                return None
        return None if participant.deadline.passed else self._take_over(found, notice)

    def _join(self, found: bytes, notice: Notice, authentic: bool) -> Formed | None:
        """Take this rank's slot and wait for the leader's decision."""
        participant = self._participant
        session = notice.session
        if _process.is_gone(notice.origin):
            ours = authentic and self._began_together(notice)
            if not ours:
                return self._take_over(found, notice)
            self._condemn(found, notice)
            return None
        complaint = self._objection(notice, authentic)
        if participant.me.rank < notice.size:
            rival = participant.arrive(session, leader_is_authentic=authentic)
            if rival is not None and complaint is None:
                complaint = {"kind": "config", "text": rival}
        if complaint is not None:
            participant.flag(session, complaint)
        go = participant.scope.key(session, "go")
        heartbeat = HeartbeatMonitor(self._patience)
        came = time.monotonic()
        while True:
            here = time.monotonic() - came
            try:
                [value] = participant.wait([go], min(self._pause(here), participant.deadline.left()))
            except OpTimeout:
                pass
            else:
                return participant.outcome(session, value)
            if participant.deadline.passed:
                return self._give_up(notice, alive=heartbeat.beats > 0)
            if heartbeat.beat(participant.get(participant.scope.key(session, "beat"))):
                # The leader is alive, so its notice is not left over from an earlier run: it does not have our secret.
                # Stay longer than AUTH_GRACE, in which the leader notices that, too.
                if not authentic and here > 2 * AUTH_GRACE:
                    participant.no_secret(notice)
                continue
            current = participant.get(participant.scope.notice)
            if current != found:
                now, _ = participant.read_notice(current)
                if now is not None and now.session == session and current is not None:
                    self._announce(session, current)
                    return participant.outcome(session, current)
                end = participant.get(go)
                if end is not None:
                    return participant.outcome(session, end)
                if not authentic and (current is None or heartbeat.beats):
                    participant.no_secret(notice)  # the leader was alive: it has removed its notice, or beat before
                participant.withdraw()
                return None
            if authentic and _process.is_gone(notice.origin):
                self._condemn(found, notice)
                return None
            if heartbeat.stopped:
                if authentic and (heartbeat.beats > 0 or self._began_together(notice)):
                    participant.silent[notice.rank] = Silent(notice.place, self._patience)
                return self._take_over(found, notice)

    def _pause(self, here: float) -> float:
        """Seconds until this rank, which has waited for `here` seconds, looks at the leader's heartbeat again.

        The first `WATCHERS` ranks look often. If the leader dies, they replace the notice, and the others follow. The
        others look so rarely that the store has no more than some hundred requests per second from all of them.
        """
        often = SLICE if here < 2 else 2.5 * SLICE
        me = self._participant.me
        return often if me.rank < WATCHERS else max(often, RARELY * me.size)

    def _began_together(self, notice: Notice) -> bool:
        """Whether the leader is known to be of the same run: it was alive when this process already was, not long ago.

        The processes of a next run start when those of an earlier one have ended.
        """
        on_one_clock = _process.is_of_this_machine(notice.origin)
        return on_one_clock and notice.opened > max(_process.born(), self._participant.began - STARTING)

    def _condemn(self, found: bytes, notice: Notice) -> None:
        """End the session, because its leader has ended; raises PeerLost, or returns if another rank was faster."""
        participant = self._participant
        verdict = participant.lost({notice.rank: notice.place}, "ended")
        failed = participant.notice("failed", notice.session, verdict=verdict)
        if participant.compare_set(participant.scope.notice, found, failed) == failed:
            Leader(participant, notice.session, failed).announce_failure(verdict)

    def _announce(self, session: str, outcome: bytes) -> None:
        """Publish the outcome if the leader has not done so; it may have died before."""
        participant = self._participant
        go = participant.scope.key(session, "go")
        if participant.get(go) is not None:
            return
        participant.set(go, outcome)
        if participant.get(participant.scope.notice) != outcome:  # another member has removed it meanwhile
            participant.delete([go])

    def _objection(self, notice: Notice, authentic: bool) -> Mapping[str, Any] | None:
        """The reason why this rank and the leader that wrote `notice` cannot be in one group; None if they can."""
        me = self._participant.me
        if not authentic:
            return {"kind": "auth"}
        if notice.version != VERSION:
            text = (
                f"rank {me.rank} ({me.place}) speaks version {VERSION} of the rendezvous protocol, rank {notice.rank} "
                f"({notice.place}) version {notice.version}; install the same release on every rank"
            )
            return {"kind": "config", "text": text}
        if notice.size != me.size:
            return {"kind": "config", "text": sizes_text([Hello(notice.rank, notice.size, "", "", "", "", {}), me])}
        if notice.fingerprint != me.fingerprint:
            return {"kind": "fingerprint", "rank": me.rank, "fingerprint": me.fingerprint, "place": me.place}
        return None

    def _give_up(self, notice: Notice, alive: bool) -> Formed:
        """After the deadline, tell the leader if it is `alive`, so that all ranks report the same missing ranks.

        Returns the group if the leader had just formed it.
        """
        participant = self._participant
        missing = self._others()
        if alive:
            participant.flag(notice.session, {"kind": "late"})
            try:
                [value] = participant.wait([participant.scope.key(notice.session, "go")], LAST_WORD)
            except OpTimeout:
                pass
            else:
                return participant.outcome(notice.session, value)
            present = {hello.rank for hello in participant.arrived(notice.session)}
            missing = [rank for rank in missing if rank not in present]
        raise participant.late(missing)

    def _take_over(self, found: bytes, notice: Notice | None) -> Formed | None:
        """Replace `found`, the notice of a session that is dead or over, with a new notice and lead the new session."""
        participant = self._participant
        session = secrets.token_hex(16)
        mine = participant.notice("open", session, before=notice)
        self._patience *= 2  # the leader may be alive but slow, so wait longer next time
        if participant.compare_set(participant.scope.notice, found, mine) != mine:
            participant.withdraw()
            return None
        participant.withdraw()
        for old, size in [(notice.session, notice.size), *notice.before] if notice is not None else []:
            participant.clean(old, size)
        return Leader(participant, session, mine).run()
