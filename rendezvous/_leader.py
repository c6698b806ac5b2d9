"""The leader of a session, one attempt to form a group: waits for the ranks, decides, and publishes the outcome.

The notice is the store key with the session's state; `group` explains the other terms.

Invariant: only the leader changes the notice of its session from open to closed (the group has formed) or failed, by a
compare_set that expects the exact bytes with which the leader opened the notice. If the compare_set fails, the session
is void, and no rank has seen an outcome of the session.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from collectives.native.errors import OpTimeout

from . import _process
from ._checks import MAX_VALUE, Deadline
from ._participant import BATCH, Formed, Participant, session_keys, slot
from ._records import Hello, parse_hello, ranks_text
from ._roster import Entry

BEAT = 0.1  # seconds between heartbeats
LINGER = 0.5  # seconds for which ranks that arrive late still find the reason of a failure
AUTH_GRACE = 0.6  # seconds for the rank with the secret to replace a value without a valid HMAC
MAX_SETTLE = 0.5
LOOK = 0.5  # seconds between looks at the ranks that have arrived, while others are missing

Verdict = Mapping[str, Any]


class Leader:
    """The rank that leads one attempt to form a group: it waits for the other ranks and decides on the outcome.

    The leader is the rank that announced the attempt in the store. `session` is the random name of the attempt.
    """

    def __init__(self, participant: Participant, session: str, notice: bytes) -> None:
        self._participant = participant
        self._session = session
        self._notice = notice
        self._opened = time.monotonic()
        self._beats = 0
        self._stranger_since: float | None = None  # when a value that is not authentic was seen first
        self._stranger_at = ""  # the key of that value
        self._arrived: dict[int, Hello] = {}  # those seen so far, while others are missing
        self._looked = self._opened
        self._next_slot = 0
        self._come = 0  # the ranks below this one have taken their slots
        participant.leading = notice
        participant.leaving = session_keys(participant.scope, session, participant.me.size)

    def run(self) -> Formed | None:
        """Form a group of ranks as their leader, and return it.

        Return None if another rank has taken the lead with a new attempt. If no group can form, raise the error that
        all ranks of the group raise.
        """
        participant = self._participant
        rival = participant.arrive(self._session)
        verdict: Verdict | None = None if rival is None else {"kind": "config", "text": rival}
        while verdict is None:
            hellos: list[Hello] = []
            try:
                values = self._await_slots(min(BEAT, participant.deadline.left()))
            except OpTimeout:
                pass
            else:
                hellos, verdict = self._examine(values)
                if not hellos:
                    time.sleep(BEAT)
                elif self._wait_for_objections(hellos):
                    self._beat()  # so that no member takes this rank for dead while it reads many records
                    ended = _ended(hellos)
                    gone = {hello.rank: hello.place for hello in hellos if hello.origin in ended}
                    if not gone:
                        return self._commit(hellos)
                    verdict = participant.lost(gone, "ended")
            verdict = verdict or self._complaint() or self._foreign() or self._lost()
            if verdict is None and participant.deadline.passed:
                verdict = self._missing()
            if participant.get(participant.scope.notice) != self._notice:
                self._void()
                return None
            self._beat()
        self._fail(verdict)
        return None

    def _await_slots(self, timeout: float) -> list[bytes]:
        """Return the values of all slots. Raises OpTimeout if some are missing after `timeout` seconds.

        The leader waits for one batch of slots after the other, so that it does not ask for all of them again and
        again while ranks are missing. All values are then read at one moment, since a rank may have left again.
        """
        participant = self._participant
        size = participant.me.size
        slots = [self._key(slot(rank)) for rank in range(size)]
        deadline = Deadline(timeout)
        while size > BATCH and self._come < size:
            participant.wait(slots[self._come : self._come + BATCH], deadline.left())
            self._come += BATCH
        self._come = 0
        return participant.wait(slots, deadline.left())

    def _key(self, what: str) -> str:
        return self._participant.scope.key(self._session, what)

    def _beat(self) -> None:
        self._beats += 1
        self._participant.set(self._key("beat"), str(self._beats).encode())

    def _void(self) -> None:
        self._participant.leading = None
        self._participant.clean(self._session, self._participant.me.size)

    # -- verdicts

    def _examine(self, values: list[bytes]) -> tuple[list[Hello], Verdict | None]:
        """The hellos of all ranks, read from `values` of their slots, or a verdict (an error) if the hellos disagree.

        Returns neither while a slot has a value without a valid HMAC, since the slot's rank may still replace it.
        """
        me = self._participant.me
        hellos = []
        for rank, value in enumerate(values):
            document, authentic = self._participant.scope.unseal(f"{self._session}/{slot(rank)}", value)
            hello = parse_hello(document)
            if not authentic or hello is None or hello.rank != rank:
                self._saw_foreign(self._key(slot(rank)), document is None or authentic)
                return [], None
            hellos.append(hello)
        if any(hello.size != me.size for hello in hellos):
            return [], {"kind": "config", "text": sizes_text(hellos)}
        if any(hello.fingerprint != me.fingerprint for hello in hellos):
            return [], {"kind": "config", "text": fingerprints_text(hellos)}
        return hellos, None

    def _wait_for_objections(self, hellos: list[Hello]) -> bool:
        """Give other ranks time to object to this group; True if no rank objects."""
        participant = self._participant
        settle = participant.settle
        if settle is None:
            # Two jobs without run ids are noticed only if a rank number occurs twice. So wait for ranks of a second
            # job, about as long as the ranks in the slots took to arrive.
            one_process = len({hello.origin or hello.place for hello in hellos}) == 1
            spread = max(time.monotonic() - self._opened, 0.02 if one_process else 0.15)
            settle = 0.0 if participant.scope.run is not None or participant.me.size == 1 else min(MAX_SETTLE, spread)
        if settle:
            with contextlib.suppress(OpTimeout):
                participant.wait([self._key("flag")], settle)
        return participant.get(self._key("flag")) is None or self._complaint() is None

    def _complaint(self) -> Verdict | None:
        """The verdict (the session's error) that follows from a member's objection; None if no member has objected."""
        participant = self._participant
        value = participant.get(self._key("flag"))
        if value is None:
            return None
        document, authentic = participant.scope.unseal(f"{self._session}/flag", value)
        match document if authentic else None:
            case {"kind": "late"}:
                return self._missing()
            case {"kind": "fingerprint", "rank": int(rank), "fingerprint": str(fingerprint), "place": str(place)}:
                other = Hello(rank, participant.me.size, "", fingerprint, place, "", {})
                return {
                    "kind": "config",
                    "text": fingerprints_text([*participant.arrived(self._session), participant.me, other]),
                }
            case {"kind": "config", "text": str(text)}:
                return {"kind": "config", "text": text}
        self._saw_foreign(self._key("flag"), document is None or authentic)
        participant.delete([self._key("flag")])  # a process without the secret must not prevent objections
        return None

    def _saw_foreign(self, key: str, garbage: bool) -> None:
        if self._stranger_since is None:
            self._stranger_since = time.monotonic()
            self._stranger_at = key if garbage and self._participant.scope.secret is None else ""

    def _foreign(self) -> Verdict | None:
        """The session's error if a value without a valid HMAC was found `AUTH_GRACE` seconds ago; None before that."""
        if self._stranger_since is None or time.monotonic() - self._stranger_since < AUTH_GRACE:
            return None
        me = self._participant.me
        if self._stranger_at:
            return {"kind": "store", "text": self._participant.foreign(self._stranger_at)}
        text = (
            f"a process that wants to join does not share the secret of rank {me.rank} ({me.place}), "
            "or one of the two has none; give all ranks the same"
        )
        return {"kind": "auth", "text": text}

    def _lost(self) -> Verdict | None:
        """The verdict if a rank that had begun to join has ended, or has been silent for too long; else None."""
        participant = self._participant
        now = time.monotonic()
        if now - self._looked < LOOK:
            return None
        for silent in participant.silent.values():
            silent.seconds += min(now - self._looked, 2 * LOOK)  # more: this process itself did not run
        self._looked = now
        unseen = [rank for rank in range(participant.me.size) if rank not in self._arrived]
        ahead = [rank for rank in unseen if rank >= self._next_slot] or unseen
        if ahead:
            self._next_slot = ahead[:BATCH][-1] + 1
            self._arrived |= {hello.rank: hello for hello in participant.arrived(self._session, ahead[:BATCH])}
        ended = _ended(self._arrived.values())
        for rank, hello in list(self._arrived.items()):
            participant.silent.pop(rank, None)
            if hello.origin in ended:
                # One that has raised an error has taken its slot back before it ended.
                if participant.hello(self._session, rank) == hello:
                    return participant.lost({rank: hello.place}, "ended")
                del self._arrived[rank]
        found = {r: s.place for r, s in participant.silent.items() if 0 < participant.silence <= s.seconds}
        return participant.lost(found, f"was silent for {participant.silence:g} s") if found else None

    def _missing(self) -> Verdict:
        present = {hello.rank for hello in self._participant.arrived(self._session)}
        missing = [rank for rank in range(self._participant.me.size) if rank not in present]
        return {"kind": "late", "late": missing, "text": self._participant.late_text(missing)}

    # -- ending

    def _commit(self, hellos: list[Hello]) -> Formed | None:
        participant = self._participant
        closed = participant.notice(
            "closed", self._session, roster=[Entry(hello.nonce, hello.origin, hello.record) for hello in hellos]
        )
        if len(closed) > MAX_VALUE:
            text = f"the records of {len(hellos)} ranks are {len(closed)} bytes, more than a store takes ({MAX_VALUE})"
            self._fail({"kind": "config", "text": text})
            return None
        if participant.compare_set(participant.scope.notice, self._notice, closed) != closed:
            self._void()
            return None
        participant.leading = None
        participant.set(self._key("go"), closed)
        return participant.outcome(self._session, closed)

    def _fail(self, verdict: Verdict) -> None:
        """End the session for all ranks and raise `verdict` as an error; return if another rank took it over."""
        participant = self._participant
        failed = participant.notice("failed", self._session, verdict=verdict)
        if participant.compare_set(participant.scope.notice, self._notice, failed) != failed:
            self._void()
            return
        self._notice = failed
        self.announce_failure(verdict)

    def announce_failure(self, verdict: Verdict) -> NoReturn:
        """Tell all ranks, through the store, that this attempt to form a group has failed; then raise the error.

        `verdict` describes the failure: its kind, a text, and the ranks concerned.
        """
        participant = self._participant
        participant.leading = self._notice
        participant.set(self._key("go"), self._notice)
        arrived = len(participant.arrived(self._session)) - 1
        until = time.monotonic() + LINGER
        pause = 0.005
        while (left := until - time.monotonic()) > 0:
            # Ranks that are missing at the deadline will not join. After other errors, ranks may still be starting.
            if verdict["kind"] == "late" and self._left() >= arrived:
                break
            self._beat()
            time.sleep(min(pause, left))
            pause = min(2 * pause, BEAT)
        participant.fail(verdict)

    def _left(self) -> int:
        """The number of ranks that have read the outcome, from the store; 0 if the key is missing or has no number."""
        value = self._participant.get(self._key("left")) or b""
        return int(value) if len(value) < 10 and value.isdigit() else 0


def _ended(hellos: Iterable[Hello]) -> set[str]:
    """The origins, among those of `hellos`, of processes that have ended; each process is looked at once."""
    return {origin for origin in {hello.origin for hello in hellos} if _process.is_gone(origin)}


def sizes_text(hellos: Iterable[Hello]) -> str:
    found = _group((f"size {hello.size}", hello.rank) for hello in hellos)
    return f"ranks disagree on the size of the group: {found}; start all with the same size"


def fingerprints_text(hellos: Iterable[Hello]) -> str:
    found = _group((repr(hello.fingerprint[:300]), hello.rank) for hello in hellos)
    return f"ranks disagree on configuration or version: {found}"


def _group(pairs: Iterable[tuple[str, int]]) -> str:
    groups: dict[str, list[int]] = {}
    for value, rank in pairs:
        groups.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in groups.items())
