"""Forming a group: the ranks of a job exchange records through a store and agree on the members.

Invariant: all ranks to which `form` returns in one session have the same roster, the list of members. When the roster
was made, every rank on it was in `form`, with the same name, epoch, size and fingerprint. Neither other jobs nor data
that an earlier run left in the store can change that.

The protocol
============

A *session* is one attempt to form a group; it has a random name. All keys begin with the scope: a hash of (name, run
id), and the epoch. One key, the *notice*, has a fixed name. All other keys contain the name of their session, so keys
of two sessions cannot be confused.

    notice                  {state: open | closed | failed, session, size, fingerprint, leader, roster | verdict}
    <session>/slot/<rank>   hello of that rank: {nonce, size, fingerprint, record}
    <session>/flag          the first objection to this session
    <session>/beat          a counter that the leader increments every 0.1 s while it waits
    <session>/go            copy of the notice after the session has ended; wakes all ranks
    <session>/left          the number of ranks that have read the outcome
    <session>/word/<rank>   the value of that rank in `exchange`, if this is called
    <session>/read          the number of ranks that have read all values of `exchange`

1. Each rank draws a nonce and tries compare_set(notice, absent -> open(new session)). The rank that succeeds is the
   *leader*, all others are *members*.
2. Each rank takes the slot of its number by compare_set(slot, absent -> hello). A member sets the flag if its slot is
   in use, or if the notice has another size, fingerprint or version than its own. Then it waits for `go`.
3. The leader waits until all slots are in use. If no flag is set, it changes the notice from open to closed, with the
   roster (nonces and records by rank). The compare_set expects the bytes with which the leader opened the notice. At
   this moment the group forms. If a flag is set, the slots disagree, or the deadline passes, the leader changes the
   notice to failed, with the verdict. Then it sets `go`.
4. Each rank reads the outcome. A rank whose own nonce is on the roster is a member of the group; if the roster has
   another nonce under its number, it is a duplicate and raises. Each rank counts itself on `left`. The last member
   deletes the session's keys, then changes the notice from this outcome to absent. After a failure the leader does
   this. Before, it continues to beat for 0.8 s, so that ranks that arrive meanwhile raise the same verdict.
5. A rank replaces a notice in three cases: it is open and its leader has not beaten for 1.5 s and 6 checks, or its
   process is known to be gone; it has been closed for 3 s; it has failed and nothing beats. The rank does this by
   compare_set(notice, what it read -> open(new session)), deletes the old session's keys, and is the leader of the new
   session. If it dies before, its notice names the session whose keys are still to be deleted. Members of the old
   session see that the beat has stopped, read the notice, and start again at step 1 with the same nonce.
6. A member whose deadline passes sets the flag, so that all ranks fail together, with one list of missing ranks.

Why stale data and concurrent jobs do no harm:

- An earlier run that was killed leaves a notice and keys of its session. New ranks wait at that notice at most 1.5 s
  (3 s if it was closed), because nothing beats there. A value that does not change while a rank watches it raises no
  error. Then one of the new ranks replaces the notice and deletes the keys of the session. Slots, flags and records of
  the old session are never read again, since keys contain the session's name. Clocks of two hosts are never compared;
  each rank only measures how long it has waited.
- A leader that was replaced although it was only slow cannot form its group: its compare_set expects the old notice,
  which never returns, since session names never occur twice. The leader notices this by the compare_set, or at its
  next beat, and starts again as a member. So it does no harm to consider a leader dead by mistake.
- Only the last member that has read the roster, or some rank after 3 s, removes a closed notice. So if a leader dies
  right after closing, the group has formed: members that never get the `go` find the closed notice when the beat
  stops. A member that gives up its leader at this moment finds it, too, with its own nonce on the roster.
- All decisions on one session are compare_sets of one key, so exactly one of them succeeds: closed, failed or replaced.
- A rank accepts a roster or verdict only of a session whose open notice it has read, and it is a member only if the
  roster has the nonce that it drew in this call.
- Two ranks with the same number try to take the same slot: one gets it, the other sets the flag. Two jobs with the
  same name and different run ids have different scopes. Without run ids they share a notice, and only duplicate rank
  numbers distinguish them. So the leader then waits before it closes a full set of slots, and ranks of the other job
  can object. It waits as long as the slots took to fill (`settle`): 20 ms at least, or 150 ms for several processes,
  and at most 500 ms. Run ids are exact, and need no wait.
- With a secret, notices, slots and flags carry an HMAC over (scope, epoch, key, content). A slot or flag without a
  valid HMAC is ignored, and the rank with the secret may take over the slot. If the group is not complete 0.6 s later,
  all ranks raise AuthError. So a process without the secret that can write to the store may prevent a job from
  starting, but can never join it.

After all members have read the roster, nothing remains in the store. If a member dies before it has read the closed
notice, the session's keys remain; `release`, the next group of the scope, or the store's TTL removes them.
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

    `run_id` is the same on all ranks and new each time that a group forms: it distinguishes the frames, keys and memory
    of this group from those of any other group, also of one with the same name. `records[r]` is the record of rank r.
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
    `epoch` is always 0 so far: after the loss of a rank, the others would form a group under the next epoch. `settle`:
    seconds for which a complete group waits for objections; None: chosen as described at the head of this module.

    Raises, on every rank that has joined: OpTimeout with `late`, the ranks that are missing when the first deadline
    passes; ConfigMismatch if a rank number occurs twice, or ranks disagree on size, fingerprint or protocol; AuthError
    if they do not share the secret. On one rank: StoreError if the store fails; ValueError and TypeError for wrong
    arguments, before anything is sent.
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
    """Exchange values through the store; returns the values of all ranks, by rank.

    At most one call per group; every rank has to call. `value` has at most `MAX_RECORD` bytes as JSON. The last rank
    that has read all values removes them from the store. Raises: OpTimeout with `late`, the ranks that had not called
    at the deadline; AuthError for a value that no rank of the group wrote; StoreError.
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
    """Remove the keys with which this group formed from the store; called when its communicator closes.

    Usually this is one read, since the last member that read the roster has removed everything. Otherwise the call
    waits until `timeout` for members that have not read the roster, then removes the keys: these members have died, or
    will notice that the group is closed. Idempotent; any rank may call it. Errors of the store are ignored. Raises:
    ValueError and TypeError for a wrong timeout only.
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
    """`rank` and `size` as ints. TypeError or ValueError unless 0 <= rank < size."""
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
    """The record after a round trip through JSON, so that all ranks, this one included, see the same record."""
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
