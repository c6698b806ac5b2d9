"""New communicators out of an existing one: its ranks meet over the links they have, without a store.

Invariant: every rank of the parent learns of a failure on any of them before new links are made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from collectives.calls.moves import Deadline
from collectives.core.links import Doors, Linked, Member, Policy, context, link
from collectives.native.errors import CollectiveError, ConfigMismatch

_LONGEST: Final = 8192  # bytes that a rank may say about itself


@dataclass(frozen=True, slots=True)
class Origin:
    """What a communicator inherits: the run and epoch, its own place in the tree of communicators, the policy."""

    run: str
    epoch: int
    path: str
    policy: Policy

    def child(self, path: str, sockets: int | None = None) -> Origin:
        """`sockets` where its links have another number of them."""
        policy = self.policy if sockets is None else replace(self.policy, sockets=sockets)
        return Origin(self.run, self.epoch, f"{self.path}.{path}", policy)


@dataclass(frozen=True, slots=True)
class Wish:
    """What one rank says in a split. `color` None: it wants no new communicator. `error`: it cannot go on."""

    color: int | None
    key: int
    member: Member | None
    error: str = ""

    def encode(self) -> bytes:
        member = None if self.member is None else self.member.to_json()
        text = json.dumps({"color": self.color, "key": self.key, "member": member, "error": self.error})
        return text.encode()

    @staticmethod
    def decode(rank: int, data: bytes) -> Wish:
        if len(data) > _LONGEST:
            raise ConfigMismatch(f"rank {rank} sent {len(data)} bytes about itself, more than {_LONGEST}")
        try:
            match json.loads(data):
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
    """This rank's number in, and part of, a new group of those with its color, ordered by key and rank.

    `origin` is the new group's; `everyones` exchanges bytes over the parent; this rank's host and core are as there.
    None where `color` is None. Raises CollectiveError, on every rank, where any cannot open its listeners; and what
    `link` raises.
    """
    doors, wish = None, Wish(color, key, None)
    problem: Exception | None = None
    if color is not None:
        try:
            doors = Doors(origin.policy, place=parent.place)
            wish = Wish(color, key, doors.member)
        except (CollectiveError, OSError, ValueError) as error:
            problem, wish = error, Wish(color, key, None, f"{type(error).__name__}: {error}")
    try:
        wishes = [Wish.decode(r, data) for r, data in enumerate(everyones(wish.encode()))]
        if problem is not None:
            raise problem
        failed = {r: w.error for r, w in enumerate(wishes) if w.error}
        if failed:
            raise CollectiveError("; ".join(f"rank {r} cannot join: {e}" for r, e in failed.items()))
        if color is None or doors is None:
            return None
        ranks = sorted((w.key, r) for r, w in enumerate(wishes) if w.color == color)
        members = [m for m in (wishes[r].member for _, r in ranks) if m is not None]
        if len(members) != len(ranks):
            raise ConfigMismatch("a rank that wants to join a new group sent no record")
        mine = ranks.index((key, rank))
        name = context(origin.run, origin.epoch, origin.path)
        return mine, link(mine, members, doors, origin.policy, name, origin.epoch, deadline, parent.home)
    except BaseException:
        if doors is not None:
            doors.close()
        raise
