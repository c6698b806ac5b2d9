"""The interface of a transport: how ranks of one group can be reached, before the engine opens links.

Invariant: a transport moves no data. It listens, publishes addresses, decides from the published places of two ranks
whether they can connect, and passes the addresses to the engine, whose links do the rest. Both ranks of a pair come to
the same decision, because both use the same two places.
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
    """From where a listener may be reached.

    `network`: also from other machines (the job has a secret, or the user passed `insecure`); else from loopback only.
    `interface`: the name or address of the only interface to use between machines, None for all that are up. `ranks`:
    the number of ranks of the group, on all hosts. `segment`: as in `init`, 0 for the default. The transport for shared
    memory computes its size from `ranks` and `segment`.
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
    """The listener of one rank over one transport. Owns its sockets until they are attached.

    It serves one communicator and, if `split` returns the listener itself, all communicators made from that one.
    """

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses for peers: short ASCII texts, for this rank's published record. Never secret."""

    def attach(self, group: Group) -> None:
        """Let `group` accept connections here from now on; called once for each group. Raises OSError.

        After the first call, the engine's job owns the sockets.
        """

    def split(self) -> Listener:
        """The listener for a communicator made from one that uses this listener: itself or a new one. Does not block.

        Raises TransportUnavailable if this process has no room for another group.
        """

    def close(self) -> None:
        """Stop listening; close sockets that were not attached. Idempotent, never raises."""


def left_out(scheme: str) -> str | None:
    """The reason why this build has no links of that transport, or None if it has."""
    from collectives.native import _engine

    known = _engine.transports()
    if scheme in known:
        return None
    return f"this build of the library has no links of {scheme}; it has those of {', '.join(known) or 'nothing'}"


class Transport(Protocol):
    """One kind of connection between ranks. Stateless: one object serves all groups of the process."""

    @property
    def scheme(self) -> str:
        """The transport's name, as in `init(transport=...)`."""

    def available(self) -> str | None:
        """None if the transport works on this machine, else the reason why not. Tries it, which takes milliseconds."""

    def listen(self, scope: Scope) -> Listener:
        """Open a listener. Does not block.

        Raises TransportUnavailable, also if this process lacks the resources for a group of `scope`; ValueError for an
        unknown interface.
        """

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        """None if the two ranks can connect, else the reason. Does not block, opens nothing.

        The result does not depend on the order of the two places.
        """

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        """Tell the engine, by `group.route`, how to reach a peer for which `reaches` has returned None. Opens nothing.

        The call names a kind of links that the engine has: shm, tcp, inproc, or one that a package has loaded
        (docs/plugins.md). May wait up to `timeout` seconds for the peer. Raises TransportUnavailable if no address of
        the peer can be used from here, ValueError for a malformed address, OpTimeout.
        """
