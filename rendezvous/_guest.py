"""A guest of a session, and what to do about a door whose session is over or whose host is dead.

Invariant: what a rank finds in the store leads to an error only if it changed, or answered this rank, while
this rank was watching; and a session that is taken for dead by mistake can no more form a group once its door
has been replaced.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from collectives.native.errors import OpTimeout

from . import _process
from ._desk import Desk, Formed, Pulse
from ._hosting import AUTH_GRACE, Hosting, sizes_text
from ._records import VERSION, Door, Hello

SLICE = 0.2  # seconds between looks at the host; longer ones once it takes long
PATIENCE = 1.5  # seconds without a sign of life after which a host is taken for dead
CLEARING = 3.0  # seconds the members of a formed group have to pick up the roster
LAST_WORD = 0.7  # seconds a rank that gives up waits for the host to tell everybody


class Guest:
    """Looks at the door until it is a member; becomes the host where there is none."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._patience = PATIENCE

    def run(self) -> Formed:
        """Raises what `form` raises."""
        desk = self._desk
        try:
            while True:
                session = secrets.token_hex(16)
                mine = desk.door("open", session)
                found = desk.compare_set(desk.scope.door, None, mine)
                formed = Hosting(desk, session, mine).run() if found in (mine, None) else self._visit(found or b"")
                if formed is not None:
                    return formed
                if desk.deadline.passed:
                    raise desk.late(self._others())
        except BaseException:
            desk.vanish()
            raise

    def _others(self) -> list[int]:
        return [rank for rank in range(self._desk.me.size) if rank != self._desk.me.rank]

    def _visit(self, found: bytes) -> Formed | None:
        """Do what the door calls for; None to look at it again."""
        door, authentic = self._desk.read_door(found)
        if door is not None and door.state == "open":
            return self._join(found, door, authentic)
        if door is not None and authentic and self._desk.is_member(door):
            # we gave that host up for dead just when it let us in
            self._announce(door.session, found)
            return self._desk.outcome(door.session, found)
        return self._watch(found, door, authentic)

    def _watch(self, found: bytes, door: Door | None, authentic: bool) -> Formed | None:
        """Wait until a session that has ended is cleared away, or do it. A host that still shows life after
        a failure means this rank too."""
        desk = self._desk
        failed = door is not None and door.state == "failed"
        patience = self._patience if failed or door is None else CLEARING
        pulse = Pulse(patience)
        until = time.monotonic() + patience
        pause = 0.002
        while time.monotonic() < until and not desk.deadline.passed:
            if failed and door is not None:
                if _process.is_gone(door.origin):
                    break
                if pulse.beat(desk.get(desk.scope.key(door.session, "beat"))):
                    if not authentic:
                        desk.no_secret(door)
                    desk.fail(door.verdict)
            time.sleep(min(pause, desk.deadline.left()))
            pause = min(2 * pause, 0.05)
            if desk.get(desk.scope.door) != found:
                return None
        return None if desk.deadline.passed else self._take_over(found, door)

    def _join(self, found: bytes, door: Door, authentic: bool) -> Formed | None:
        """Take a seat and wait for what the host decides."""
        desk = self._desk
        session = door.session
        if _process.is_gone(door.origin):
            return self._take_over(found, door)
        complaint = self._objection(door, authentic)
        if desk.me.rank < door.size:
            rival = desk.sit(session, host_is_authentic=authentic)
            if rival is not None and complaint is None:
                complaint = {"kind": "config", "text": rival}
        if complaint is not None:
            desk.flag(session, complaint)
        go = desk.scope.key(session, "go")
        pulse = Pulse(self._patience)
        came = time.monotonic()
        while True:
            here = time.monotonic() - came
            try:
                [value] = desk.store.wait([go], min(SLICE if here < 2 else 2.5 * SLICE, desk.deadline.left()))
            except OpTimeout:
                pass
            else:
                return desk.outcome(session, value)
            if desk.deadline.passed:
                return self._give_up(door, alive=pulse.beats > 0)
            if pulse.beat(desk.get(desk.scope.key(session, "beat"))):
                # alive, so not left over from an earlier run: whoever it is does not know our secret. It
                # notices the same within AUTH_GRACE if we stay so long
                if not authentic and here > 2 * AUTH_GRACE:
                    desk.no_secret(door)
                continue
            current = desk.get(desk.scope.door)
            if current != found:
                now, _ = desk.read_door(current)
                if now is not None and now.session == session and current is not None:
                    self._announce(session, current)
                    return desk.outcome(session, current)
                end = desk.get(go)
                if end is not None:
                    return desk.outcome(session, end)
                if not authentic and (current is None or pulse.beats):
                    desk.no_secret(door)  # it was alive: it ended in order, or beat before
                desk.withdraw()
                return None
            if pulse.stopped or _process.is_gone(door.origin):
                return self._take_over(found, door)

    def _announce(self, session: str, outcome: bytes) -> None:
        """Do what the host died before doing."""
        desk = self._desk
        go = desk.scope.key(session, "go")
        desk.set(go, outcome)
        if desk.get(desk.scope.door) != outcome:  # cleared away meanwhile
            desk.delete([go])

    def _objection(self, door: Door, authentic: bool) -> Mapping[str, Any] | None:
        """What speaks against this rank and that host being in one group."""
        me = self._desk.me
        if not authentic:
            return {"kind": "auth"}
        if door.version != VERSION:
            text = (
                f"rank {me.rank} ({me.place}) speaks version {VERSION} of the rendezvous protocol, rank {door.rank} "
                f"({door.place}) version {door.version}; install the same release on every rank"
            )
            return {"kind": "config", "text": text}
        if door.size != me.size:
            return {"kind": "config", "text": sizes_text([Hello(door.rank, door.size, "", "", "", "", {}), me])}
        if door.fingerprint != me.fingerprint:
            return {"kind": "fingerprint", "rank": me.rank, "fingerprint": me.fingerprint, "place": me.place}
        return None

    def _give_up(self, door: Door, alive: bool) -> Formed:
        """Our deadline has passed: tell the host, so that all ranks end with the same list of missing ones."""
        desk = self._desk
        missing = self._others()
        if alive:
            desk.flag(door.session, {"kind": "late"})
            try:
                [value] = desk.store.wait([desk.scope.key(door.session, "go")], LAST_WORD)
            except OpTimeout:
                pass
            else:
                return desk.outcome(door.session, value)
            present = {hello.rank for hello in desk.seated(door.session)}
            missing = [rank for rank in missing if rank not in present]
        raise desk.late(missing)

    def _take_over(self, found: bytes, door: Door | None) -> Formed | None:
        """Replace a door whose session is dead or done by our own."""
        desk = self._desk
        session = secrets.token_hex(16)
        mine = desk.door("open", session, before=door)
        self._patience *= 2  # if that host was alive after all, everything is slow here
        if desk.compare_set(desk.scope.door, found, mine) != mine:
            desk.withdraw()
            return None
        desk.withdraw()
        for old, size in [(door.session, door.size), *door.before] if door is not None else []:
            desk.clean(old, size)
        return Hosting(desk, session, mine).run()
