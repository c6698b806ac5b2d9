"""Forming a group: the ranks of a job exchange records through a store and agree on the members.

Invariant: two ranks that `form` returns to in one session hold the same roster, and every rank on it was in
`form`, with that session's name, epoch, size and fingerprint, when the roster was made. Nothing an earlier run
left in the store, and no other job, can change that.

The protocol
============

All keys begin with the scope: a hash of (name, run id), and the epoch. One key has a fixed name, the *notice*; all
others carry the random name of a *session*, so they cannot be mistaken for another session's.

    notice            {state: open | closed | failed, session, size, fingerprint, leader, roster | verdict}
    <session>/slot/<rank>   hello of that rank: {nonce, size, fingerprint, record}
    <session>/flag          the first objection to this session
    <session>/beat          a counter that the leader moves every 0.1 s while it waits
    <session>/go            copy of the notice after the session has ended; wakes all ranks
    <session>/left          how many have read the outcome
    <session>/word/<rank>   that rank's value in `exchange`, if it is called, and
    <session>/read          how many have read all of it

1. Each rank draws a nonce and tries compare_set(notice, absent -> open(new session)). The rank that succeeds is the
   *leader*, all others are *members*.
2. Each rank claims the slot of its number by compare_set(slot, absent -> hello). A member that finds its slot in use,
   or the notice's size, fingerprint or version different from its own, sets the flag. Then it waits for `go`.
3. The leader waits until all slots are in use. If no flag is up, it moves the notice, by compare_set, from the bytes
   with which it opened it to closed, with the roster (nonces and records by rank). At this moment the group forms. If a
   flag is up, the slots disagree, or the deadline passes, it moves the notice to failed, with the verdict. Then it sets
   `go`.
4. Each rank reads the outcome. A rank that finds its own nonce in the roster is a member; one that finds another nonce
   there was a duplicate and raises. Each counts itself on `left`; the last member deletes the session's keys, then
   compare_sets the notice from that outcome to absent. After a failure the leader does so: it continues to beat for 0.8
   s, so that ranks that arrive meanwhile, and see it beat, raise the same verdict.
5. A member whose leader has not beaten for 1.5 s and 6 looks (or whose process is known to be gone), or a rank that
   finds a notice closed for 3 s or failed without a beat, replaces it: compare_set(notice, what it read -> open(its
   own session)), deletes the old session's keys and is the leader of the new one; if it dies in between, its notice
   names the session whose keys are still to be deleted. Members of the old session see the beat stop, look at the
   notice and start over at step 1 with the same nonce.
6. A member whose deadline passes sets the flag, so that all ranks fail together, with one list of missing ranks.

Why stale data and concurrent jobs do no harm:

- An earlier run that was killed leaves a notice and keys of its session. New ranks wait at that
  notice at most 1.5 s (3 s if it was closed): nothing beats there, and no error is raised on account of anything
  that did not change while the rank that reads it was there. Then one of them replaces the notice and deletes the
  session. Old slots, flags and records belong to the old session's name and are never looked at again. No
  clock is compared with another's, only how long a rank itself has waited.
- A leader that was only slow, and was replaced, cannot form its group: its compare_set expects a notice that is
  gone, for good, since session names never come twice. It learns so by that compare_set, or at its next
  beat, and starts over as a member. So a wrong decision that a leader is dead does no harm.
- Conversely, once the notice is closed, only the last member that has read the roster, or someone after 3 s,
  removes it; a leader that dies right after closing has formed the group: members that miss the `go` find the
  closed notice when the beat stops. So does a member that gives its leader up just then: its nonce is on the roster.
- All decisions on one session are compare_sets of one key, so exactly one of: closed, failed, replaced.
- Roster and verdicts concern this rank only if they bear a session name that it read from the open notice itself,
  and a membership only if the roster shows the nonce it drew in this call.
- Two ranks with one number meet at one slot: compare_set lets one in, the other flags. Two jobs with one name
  and different run ids have different scopes. Without run ids they share a notice, and only duplicate rank numbers
  distinguish them; so the leader then keeps a full set of slots open a little longer (`settle`: as long as it took to
  fill, between 20 ms, or 150 ms for several processes, and 500 ms), so that the other job's ranks can object. Run ids
  cost nothing and are exact.
- With a secret, notices, slots and flags carry an HMAC over (scope, epoch, key, content). A slot or flag without
  a right one is ignored, and its slot may be taken over by the rightful rank; if the group is not complete 0.6 s
  later, all raise AuthError. A process that can write to the store can still prevent a job from starting, but never
  join it.

What remains in the store: nothing, once all members have read the roster. A member that dies between closing and
reading leaves the session's keys; `release` removes them, or the next group of the scope, or the store's TTL.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import numbers
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collectives.native.errors import AuthError, OpTimeout, StoreError

from . import secret as secrets
from ._checks import Deadline, check_timeout
from ._member import Member
from ._participant import Participant, exchange_keys, session_keys
from ._records import MAX_DEPTH, MAX_RECORD, MAX_SIZE, Scope, dumps, fits, parse_notice
from .store import DEFAULT_TIMEOUT, Store, check_store

MAX_NAME = 128  # bytes
MAX_FINGERPRINT = 1024  # bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """A group that has formed, as seen by one of its ranks.

    `run_id` is new with every formation and the same on all ranks: it distinguishes this group's frames, keys and
    segments from those of any other, also of one with the same name. `records[r]` is the record of rank r.
    """

    name: str
    run_id: bytes
    epoch: int
    rank: int
    size: int
    records: tuple[Mapping[str, Any], ...]
    session: str = field(repr=False)
    scope: Scope = field(repr=False, compare=False)


def form(
    store: Store,
    *,
    rank: int,
    size: int,
    name: str,
    record: Mapping[str, Any],
    fingerprint: str,
    run_id: str | None = None,
    secret: bytes | None = None,
    epoch: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    settle: float | None = None,
) -> Membership:
    """Form a group with the other ranks; blocks until all have joined or the attempt has failed.

    `record` (at most 4 KiB of JSON) is passed to the other ranks. `fingerprint` has the settings on which all ranks
    must agree: configuration and version, as text that a person can compare. `run_id` distinguishes jobs with one name.
    `epoch` is 0 so far: survivors of a lost rank would form a group under the next one. `settle`: seconds a complete
    group waits for objections; None chooses (see above).

    Raises, on every rank that has joined: OpTimeout with `late`, the ranks missing at the deadline (of the rank whose
    deadline is first); ConfigMismatch if a rank number occurs twice, or ranks disagree on size, fingerprint or
    protocol; AuthError if they do not share the secret. StoreError if the store fails; ValueError and TypeError for
    wrong arguments, before anything is sent.
    """
    check_store(store)
    rank, size = check_rank(rank, size)
    scope = Scope(_text("name", name, MAX_NAME), run_id, _integer("epoch", epoch), secret)
    if run_id is not None:
        _text("run id", run_id, MAX_FINGERPRINT)
    if secret is not None:
        secrets.check(secret)
    _text("fingerprint", fingerprint, MAX_FINGERPRINT)
    check_timeout(timeout)
    if settle is not None:
        check_timeout(settle, "settle")
    if scope.epoch < 0:
        raise ValueError(f"epoch must not be negative, is {epoch}")
    participant = Participant(store, scope, rank, size, fingerprint, _copy(record), timeout, settle)
    formed = Member(participant).run()
    mark = hashlib.sha256("\n".join([scope.base, formed.session, *formed.nonces]).encode())
    return Membership(name, mark.digest()[:16], scope.epoch, rank, size, formed.records, formed.session, scope)


def exchange(store: Store, membership: Membership, value: Any, timeout: float = DEFAULT_TIMEOUT) -> list[Any]:
    """The values of all ranks of the group, by rank; once, and called by every rank or none.

    `value` is JSON, of at most `MAX_RECORD` bytes. The last rank to have read everything removes it from the store.
    Raises: OpTimeout with `late`, the ranks that had not called at the deadline; AuthError for a value that none of
    them wrote; StoreError.
    """
    deadline = Deadline(check_timeout(timeout))
    scope = membership.scope
    *keys, read = exchange_keys(scope, membership.session, membership.size)
    mine = keys[membership.rank]
    try:
        store.set(mine, scope.seal(mine, {"value": value}), deadline.left())
        texts = store.wait(keys, deadline.left())
    except OpTimeout as error:
        late = [rank for rank, key in enumerate(keys) if store.get(key, 1.0) is None]
        store.delete([*keys, read], 1.0)
        raise OpTimeout(
            f"group {membership.name!r} has formed, but ranks {late} did not answer: {error}", late
        ) from error
    found = []
    for rank, (key, text) in enumerate(zip(keys, texts, strict=True)):
        document, authentic = scope.unseal(key, text)
        if not authentic or document is None or "value" not in document:
            raise AuthError(f"group {membership.name!r}: what is under {key!r} was not written by rank {rank}")
        found.append(document["value"])
    if store.add(read, 1, deadline.left()) == membership.size:
        store.delete([*keys, read], deadline.left())
    return found


def release(store: Store, membership: Membership, timeout: float = 2.0) -> None:
    """Remove the keys of forming this group from the store; called when its communicator closes.

    Usually one read, since the last member to read the roster has removed everything. Otherwise it waits for the
    members until `timeout`, then removes the keys: these members died, or will find that the group is closed.
    Idempotent; any rank may call it. Errors of the store are ignored. Raises: ValueError and TypeError for a wrong
    timeout only.
    """
    deadline = Deadline(timeout)
    scope = membership.scope
    pause = 0.002
    with contextlib.suppress(StoreError):
        while store.get(scope.key(membership.session, "left"), 1.0) is not None:
            if deadline.passed:
                store.delete(session_keys(scope, membership.session, membership.size), 1.0)
                notice = store.get(scope.notice, 1.0)
                seen = parse_notice(scope.unseal("notice", notice or b"")[0])
                if seen is not None and seen.session == membership.session:
                    store.compare_set(scope.notice, notice, None, 1.0)
                return
            time.sleep(min(pause, deadline.left()))
            pause = min(2 * pause, 0.05)


def check_rank(rank: int, size: int) -> tuple[int, int]:
    """Both as ints, 0 <= rank < size; else TypeError or ValueError."""
    rank, size = _integer("rank", rank), _integer("size", size)
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"size must be 1 to {MAX_SIZE}, is {size}")
    if not 0 <= rank < size:
        raise ValueError(f"rank must be 0 to {size - 1} in a group of {size}, is {rank}")
    return rank, size


def _integer(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    return int(value)


def _text(what: str, value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not value or not value.isprintable() or len(value.encode()) > limit:
        raise ValueError(f"{what} must be 1 to {limit} bytes of printable text, is {value[:80]!r}")
    return value


def _copy(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record as JSON carries it, so that this rank sees its own as others do."""
    if not isinstance(record, Mapping):
        raise TypeError(f"a record is a mapping, not {type(record).__name__}")
    try:
        body = dumps(dict(record))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a record must be JSON: {error}") from error
    if len(body) > MAX_RECORD:
        raise ValueError(f"a record is at most {MAX_RECORD} bytes of JSON, not {len(body)}")
    copy: Mapping[str, Any] = json.loads(body)
    if not fits(copy):
        raise ValueError(f"lists and objects in a record are nested at most {MAX_DEPTH} deep")
    return copy
