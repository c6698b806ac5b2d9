"""Makes communicators from an existing one, whose ranks exchange records over its links and need no store.

Invariant: every rank of the parent communicator learns of a failure on any rank. Links of a new communicator are opened
when its calls first need them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from collectives.calls.moves import Deadline
from collectives.core.links import Endpoints, Linked, Member, Policy, context, link
from collectives.native.errors import CollectiveError, ConfigMismatch

_LONGEST: Final = 8192  # bytes of a rank's record


@dataclass(frozen=True, slots=True)
class Origin:
    """The properties that a new communicator inherits from its parent: the job's identity, and how ranks connect.

    `run` and `epoch` identify the job. `path` identifies the communicator within the job: it names the calls of `split`
    and `dup` that led to it. `policy`: the settings by which its ranks connect to each other.
    """

    run: str
    epoch: int
    path: str
    policy: Policy

    def child(self, path: str, policy: Policy | None = None) -> Origin:
        """Returns the `Origin` of a new communicator, whose parent is the communicator with this `Origin`.

        `path`: a name, different for each communicator with the same parent. `policy`: the settings by which its ranks
        connect to each other; None for those of the parent.
        """
        return Origin(self.run, self.epoch, f"{self.path}.{path}", policy or self.policy)


@dataclass(frozen=True, slots=True)
class Wish:
    """The record that each rank sends to all others when a communicator is split.

    `color`: None if the rank joins no new communicator. `member`: the rank's host and addresses. `unchanged`: whether
    host and addresses are the same as in the parent communicator; `member` is then None. `error`: why the rank cannot
    take part; empty if it can.
    """

    color: int | None
    key: int
    member: Member | None
    error: str = ""
    unchanged: bool = False

    def encode(self) -> bytes:
        member = None if self.member is None else self.member.to_json()
        fields = {
            "color": self.color,
            "key": self.key,
            "member": self.unchanged or member,
            "error": self.error,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(rank: int, data: bytes) -> Wish:
        if len(data) > _LONGEST:
            raise ConfigMismatch(f"rank {rank} sent {len(data)} bytes about itself, more than {_LONGEST}")
        try:
            match json.loads(data):
                case {"color": int() | None as color, "key": int(key), "member": True, "error": str(error)}:
                    return Wish(color, key, None, error, unchanged=True)
                case {"color": int() | None as color, "key": int(key), "member": member, "error": str(error)}:
                    return Wish(color, key, None if member is None else Member.from_json(member), error)
        except (ValueError, RecursionError) as problem:
            raise ConfigMismatch(f"rank {rank} sent something that makes no sense: {problem}") from problem
        raise ConfigMismatch(f"rank {rank} sent something that makes no sense: {data[:200]!r}")


def separate(
    rank: int,
    color: int | None,
    key: int,
    origin: Origin,
    everyones: Callable[[bytes], Sequence[bytes]],
    deadline: Deadline,
    parent: Linked,
) -> tuple[int, Linked] | None:
    """Makes a new communicator of all ranks of `parent` that pass the same `color`, ordered by key and rank.

    Returns this rank's number in the new communicator, and its group of ranks; None if `color` is None. `origin`
    identifies the new communicator. `everyones` sends its argument to all ranks of `parent`, and returns the arguments
    of all ranks. This rank keeps the host and core that it has in `parent`. If a rank fails to open its listeners or
    to make its group, it raises that error; all other ranks raise CollectiveError.
    """
    endpoints: Endpoints | None = None
    wish = Wish(color, key, None)
    problem: Exception | None = None
    name = context(origin.run, origin.epoch, origin.path)
    if color is not None:
        try:
            endpoints = parent.endpoints.split()
            unchanged = endpoints.member == parent.members[rank]
            wish = Wish(color, key, None if unchanged else endpoints.member, unchanged=unchanged)
            parent.job.expect(name)  # a peer that has all records may connect before this rank has them
        except (CollectiveError, OSError, ValueError) as error:
            problem, wish = error, Wish(color, key, None, _text(error))
    try:
        wishes = [Wish.decode(r, data) for r, data in enumerate(everyones(wish.encode()))]
        _raise_first(problem, [w.error for w in wishes])
        found = None
        if color is not None and endpoints is not None:
            ranks = sorted((w.key, r) for r, w in enumerate(wishes) if w.color == color)
            records = [parent.members[r] if wishes[r].unchanged else wishes[r].member for _, r in ranks]
            members = [record for record in records if record is not None]
            if len(members) != len(ranks):
                raise ConfigMismatch("a rank that wants to join a new group sent no record")
            mine = ranks.index((key, rank))
            numbers = [parent.job_ranks[r] for _, r in ranks]
            try:
                found = (
                    mine,
                    link(
                        mine,
                        members,
                        endpoints,
                        origin.policy,
                        name,
                        origin.epoch,
                        deadline,
                        parent,
                        numbers,
                    ),
                )
            except (CollectiveError, OSError, ValueError) as error:
                problem = error
        try:
            outcomes = everyones(b"" if problem is None else _text(problem).encode()[:_LONGEST])
            _raise_first(problem, [o.decode(errors="replace") for o in outcomes])
        except BaseException:
            if found is not None:
                found[1].close()
            raise
        return found
    except BaseException:
        if endpoints is not None:
            endpoints.close()
            parent.job.forget(name)
        raise


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _raise_first(own: Exception | None, errors: Sequence[str]) -> None:
    """Raise `own`, this rank's error; if it is None, raise CollectiveError with the errors of other ranks, if any.

    `errors`: by rank, the text of its error; empty for a rank without error.
    """
    if own is not None:
        raise own
    failed = "; ".join(f"rank {rank} cannot join: {error}" for rank, error in enumerate(errors) if error)
    if failed:
        raise CollectiveError(failed)
