"""Forming a group: the ranks of a job exchange records through a store and agree on the members.

Invariant: all ranks to which `form` returns in one session have the same roster, the list of members. When the roster
was made, every rank on it was in `form`, with the same name, epoch, size and fingerprint. This holds whatever
other jobs do, and whatever an earlier run has left in the store.

The protocol
============

A *session* is one attempt to form a group; it has a random name. All keys begin with the *scope*: a hash of the group's
name and run id, and the epoch. One key, the *notice*, has a fixed name. It describes the current session. All other
keys contain the name of their session, so keys of two sessions cannot be confused.

    notice                  {version, state: open | closed | failed, session, size, fingerprint, leader,
                            roster, the members (if closed; see `_roster`) | verdict, the reason (if failed)}
    <session>/slot/<rank>   the hello of this rank: {nonce, size, fingerprint, record}
    <session>/flag          the first objection of a rank to this session
    <session>/beat          a counter that the leader increments every 0.1 s while it waits
    <session>/go            the outcome: a copy of the closed or failed notice; wakes all ranks
    <session>/left          the number of ranks that have read the outcome
    <session>/word/<rank>   the value that this rank passes to `exchange`, if `exchange` is called
    <session>/unanswered    the first reason for which a rank gives up `exchange`, if there is one (see `_reason`)
    <session>/failed        the first error of a rank after the group has formed, if there is one (see `cause`)
    <session>/…-known       the number of ranks that know one of these two, or have read all values of `exchange`

1. Each rank draws a nonce and tries to create an open notice with a new session: compare_set(notice, absent -> open).
   The rank that succeeds is the *leader*, all others are *members*.
2. Each rank takes the slot of its number by compare_set(slot, absent -> hello). A member sets the flag if its slot is
   in use, or if its size, fingerprint or version differs from that in the notice. Then the member waits for `go`.
3. The leader waits until all slots are in use, for one batch of them after the other, and then reads all of them. If
   no flag is set, it changes the notice from open to closed, with the roster (nonces and records by rank). The
   compare_set expects the bytes with which the leader opened the notice. At this moment the group forms. If a flag is
   set, the slots disagree, or the deadline passes, the leader changes the notice to failed, with the verdict. In both
   cases the leader then sets `go`.
4. Each rank reads the outcome. A rank whose nonce is on the roster belongs to the group. If the roster has another
   nonce under the rank's number, the rank was started twice and raises an error. All others increment `left`. After
   success, the last of them deletes the session's keys, and then the notice. After a failure, the leader deletes both.
   But first it increments `beat` for 0.5 s more, so that ranks that arrive in this time raise the same verdict.
   The leader also looks at the processes of the ranks that have taken their slots. If one of this machine has ended,
   the verdict is that this rank is lost. A rank that raises an error takes its slot back first.
5. If the process of the leader ends while members wait, one of them changes the notice from open to failed, with the
   verdict that the leader is lost, and does for the session what a leader does after a failure. This is also done by a
   rank whose process ran when the leader opened the session, and which first reads the notice after the leader's end.
   In all other cases a rank replaces the notice of another rank:
   - The notice is open, and `beat` has not changed for 1.5 s and 6 checks, or the leader's process is known to have
     ended before the process of this rank started.
   - The rank has seen the notice closed for 3 s.
   - The notice has failed, and `beat` does not change any more.
   The rank replaces what it has read by compare_set(notice, old -> open), deletes the old session's keys, and is the
   leader of a new session. The new notice names the old session, so if this leader dies too early, the next leader
   deletes the old keys. Members of the old session see that `beat` has stopped, read the notice, and start again at
   step 1 with the same nonce. A leader that was alive, and does not join again within `silence` seconds, is lost: that
   is the verdict of the next leader.
6. A member whose deadline passes sets the flag, so that all ranks fail together, with one list of missing ranks.

Why stale data and concurrent jobs do no harm:

- An earlier run that was killed leaves a notice and keys of its session. New ranks see that `beat` does not
  change, and wait at most 1.5 s (3 s if the notice is closed). Then one of them replaces the notice and deletes the
  keys of the old session. A rank raises no error for a value that was in the store before and does not change. Slots,
  flags and records of the old session are never read again, since keys contain the session's name. Clocks of two hosts
  are never compared; each rank only measures how long it has waited.
- A store may lose all its keys, for example when its server is started again. Ranks that wait then see that the notice
  is gone although they have read no outcome, and start again at step 1. While the store is unreachable they repeat
  their calls for up to 4 s. A call may have taken effect although its answer is lost. To repeat it does no harm, since
  what a rank writes contains its nonce or the name of its session. If the keys are lost after some ranks have read the
  roster and before others have, the leader publishes the roster again (see `keeper`).
- It does no harm to replace the notice of a leader that is slow, not dead. This leader can no longer form its group:
  its compare_set expects its own notice, which never returns, since session names never occur twice. The leader notices
  the new notice when its compare_set fails, or before its next beat, and starts again at step 1.
- Only the last rank that has read the roster, or some rank after 3 s, removes a closed notice. So the group has formed
  even if the leader dies right after it has closed the notice. Members that wait for `go` in vain then see that `beat`
  has stopped, and read the closed notice with their own nonces on its roster.
- All decisions on one session are compare_sets of one key, so exactly one of them succeeds: closed, failed or replaced.
- A rank accepts a roster only if the roster has the nonce that the rank drew in this call of `form`.
- Two ranks with the same number try to take the same slot: one gets the slot, the other sets the flag. Two jobs with
  the same name and different run ids have different scopes. Two jobs without run ids share a notice, and only duplicate
  rank numbers tell them apart. So without a run id, the leader waits once more when all slots are in use, and ranks of
  another job can object. This wait (`settle`) is as long as the slots took to fill, at most 500 ms. It is at least
  20 ms if all ranks are in one process, else at least 150 ms.
- With a secret, notices, slots and flags carry an HMAC over (scope, epoch, key, content). A slot or flag without a
  valid HMAC is ignored, and a rank that knows the secret may take over the slot. If the group is not complete
  0.6 s after the leader has found such a value, all ranks raise AuthError. So a process that can write to the store,
  but does not know the secret, may prevent a job from starting, but can never join it.

After all ranks have read the roster, nothing remains in the store. If a rank dies before it has read the closed
notice, the session's keys remain; `release`, the next group of the scope, or the store's TTL removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import numbers
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.native.errors import StoreError

from . import _process
from . import secret as secrets
from ._checks import Deadline, check_timeout
from ._member import Member
from ._participant import Participant, session_keys
from ._records import MAX_DEPTH, MAX_RECORD, MAX_SIZE, Scope, dumps, fits, parse_notice
from ._roster import Part, Roster
from .store import DEFAULT_TIMEOUT, Store, check_store

MAX_NAME = 128  # bytes
MAX_FINGERPRINT = 1024  # bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """A group that has formed, and the place of this process in it: `rank` of `size`.

    `run_id` (16 bytes) is the same on all ranks, and new each time that a group forms. It distinguishes the messages,
    store keys and memory of this group from those of any other group, even one of the same name. `records[r]` is the
    `record` that rank r has passed to `form`.
    """

    name: str
    run_id: bytes
    epoch: int
    rank: int
    size: int
    records: Sequence[Mapping[str, Any]]
    session: str = field(repr=False)
    scope: Scope = field(repr=False, compare=False)
    roster: Roster = field(repr=False, compare=False)
    origins: Sequence[str] = field(default=(), repr=False, compare=False)  # the ranks' processes, see `_process`
    leader: int = field(default=0, repr=False, compare=False)  # the rank that has led the session
    notice: bytes = field(default=b"", repr=False, compare=False)  # on the leader: the final content of `notice`

    def has_ended(self, rank: int) -> bool:
        """Return whether the process of `rank` is known to have ended.

        The result is False for a process of another machine.
        """
        return _process.is_gone(self.origins[rank])


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
    silence: float = 0.0,
) -> Membership:
    """Form a group with the other ranks; block until all have joined or an error is certain.

    `rank` and `size` are this rank's number and the number of ranks. `name` and `run_id` identify the job: only ranks
    that pass the same values meet. `record`, at most 4 KiB as JSON, is passed to all other ranks. `fingerprint` is a
    readable text with the settings that must be the same on all ranks, such as the version. `secret`, if not None, must
    be the same on all ranks. `epoch` is meant to count how often the job has formed a new group; it is always 0 so far.

    The rank that comes first leads. When all ranks have joined, the leader waits `settle` seconds, in which a second
    process with the same rank number can object. If `settle` is None, the library chooses the time; it is 0 if `run_id`
    is given. A leader whose heartbeat stops counts as dead if it does not join again within `silence` seconds; 0 means
    never. `timeout` is the limit for the whole call, in seconds.

    Raises, on every rank that has joined:

    - OpTimeout if ranks are missing when the time limit of one rank has passed; its `late` has the missing ranks
    - PeerLost for a rank that ended or stopped answering while the group formed
    - ConfigMismatch if two processes have the same rank, or if size, fingerprint or protocol version differ
    - AuthError if ranks do not share the secret

    Raises, only on the rank that is affected: StoreError if the store fails; ValueError or TypeError for wrong
    arguments.
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
    check_timeout(silence, "silence")
    participant = Participant(store, scope, rank, size, fingerprint, _copy(record), timeout, settle, silence)
    formed = Member(participant).run()
    roster = formed.roster
    mark = hashlib.sha256(f"{scope.base}\n{formed.session}\n".encode() + roster.nonces)
    records: Sequence[Mapping[str, Any]] = Part(size, lambda rank: roster[rank].record)
    origins: Sequence[str] = Part(size, roster.origin)
    found = formed.session, scope, roster, origins, formed.leader, formed.notice
    return Membership(name, mark.digest()[:16], scope.epoch, rank, size, records, *found)


def release(store: Store, membership: Membership, timeout: float = 2.0) -> None:
    """Delete the store keys that ranks wrote when the group `membership` formed.

    Call it when the group's communicator closes. Usually the keys are already deleted, by the last rank that learned
    that the group has formed. Then the call reads one key and returns. Otherwise it waits up to `timeout` seconds for
    ranks that have not learned it yet, and then deletes the keys.

    Any rank may call this function, more than once. Errors of the store are ignored. Raises: ValueError or TypeError
    for a wrong timeout.
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
    """Return `rank` and `size` as ints, after checking that 0 <= rank < size.

    Raises: TypeError if a value is no integer; ValueError if a value is out of range.
    """
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
    """A copy of `record`, encoded as JSON and decoded, so that this rank sees the same record as the other ranks."""
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
