"""What a transport is: how ranks of one group can be reached, before the engine opens links.

Invariant: a transport moves no data. It listens, says where, decides from two ranks' published places whether
they can meet, and tells the engine how; the engine's links do the rest. Both ranks of a pair decide alike,
because both look at the same two places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from collectives.transports.host import HostIdentity

if TYPE_CHECKING:
    from collectives.native._engine import Group


@dataclass(frozen=True, slots=True)
class Scope:
    """How far a listener may be seen.

    `network`: also from other machines (the job has a secret, or its user waived it); else loopback only.
    `interface`: the name or address of the only interface to use between machines, None for all that are up.
    `ranks`: of the group, on all hosts; `segment` as in `init`, 0 for the usual: what shared memory needs.
    """

    network: bool
    interface: str | None = None
    ranks: int = 2
    segment: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank can be reached over one transport: its host and the addresses its listener published."""

    rank: int
    identity: HostIdentity
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.identity.host}"


class Listener(Protocol):
    """Where one rank listens over one transport. Owns its sockets until they are attached.

    It serves a communicator and, where `split` returns the listener itself, all that are made from it.
    """

    @property
    def addresses(self) -> Sequence[str]:
        """What peers need to find it: short ASCII texts, for this rank's published record. Never secret."""

    def attach(self, group: Group) -> None:
        """Let `group` accept here from now on; the first group's job owns the sockets. Once for each group. Raises
        OSError."""

    def split(self) -> Listener:
        """Where a communicator made from one that listens here does: itself, or a new listener. Does not block.
        Raises TransportUnavailable where this process has no room for another group."""

    def close(self) -> None:
        """Stop being found; close what was not attached. Idempotent, never raises."""


def left_out(scheme: str) -> str | None:
    """Why the engine cannot use that transport of its own: this build leaves its links out. None where it has them."""
    from collectives.native import _engine

    known = _engine.transports()
    if scheme in known:
        return None
    return f"this build of the library has no links of {scheme}; it has those of {', '.join(known) or 'nothing'}"


class Transport(Protocol):
    """One way of moving bytes between ranks. Stateless: one object serves all groups of the process."""

    @property
    def scheme(self) -> str:
        """Its name, as in `init(transport=...)`."""

    def available(self) -> str | None:
        """None if it works on this machine, else the reason why not, found by trying. Takes milliseconds."""

    def listen(self, scope: Scope) -> Listener:
        """Open a listener. Does not block. Raises TransportUnavailable, where this process has no room for such a group
        too; ValueError for an unknown interface."""

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        """None if the two can meet, else the reason why not. Does not block, opens nothing; the answer is the
        same with the two places exchanged."""

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        """Tell `group`, by its `route`, how to reach a peer that `reaches` allows. Opens nothing.

        The engine has links of its own for shm, tcp and inproc; whatever a transport is called, it names one of
        these to it.

        May wait up to `timeout` seconds for what the peer has still to do. Raises TransportUnavailable where
        no address of the peer can be used from here, ValueError for a malformed one, OpTimeout.
        """
