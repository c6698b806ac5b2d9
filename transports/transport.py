"""The interface of a transport, which finds out how ranks reach each other, before the engine opens links between them.

Invariant: a transport moves no data. It listens, publishes addresses and passes the addresses of peers to the engine,
whose links (connections) carry the data. It decides whether two ranks can connect by their places: the published host
and addresses of each. Both ranks come to the same decision, because both use the same two places.
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
    """From where a listener may be reached, and for how many ranks and which sizes it needs room.

    `network`: whether other machines may connect (the job has a secret, or the user passed `insecure`); if not, only
    loopback is used. `interface`: the name or address of the only interface to use between machines, None for all that
    are up. `ranks`: the number of ranks of the group, on all hosts. `segment`: bytes staged at a time, as in `init`; 0
    for the default. The size of the shared memory depends on `ranks` and `segment`.
    """

    network: bool
    interface: str | None = None
    ranks: int = 2
    segment: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank can be reached over one transport: its host, and the addresses that its listener published.

    `ended`: its process has ended meanwhile, so that nothing is open at these addresses.
    """

    rank: int
    identity: HostIdentity
    addresses: tuple[str, ...]
    ended: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.identity.host}"


class Listener(Protocol):
    """A rank's listening sockets for one transport, which it owns until `attach` passes them to the C++ engine.

    A listener serves one communicator. If `split` returns the listener itself, it also serves all communicators that
    are made from this communicator.
    """

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses that this rank publishes for its peers, as short ASCII texts. Never secret."""

    def attach(self, group: Group) -> None:
        """Let `group` accept connections on this listener from now on; called once for each group. Raises OSError.

        The first call passes the sockets to the C++ engine, which owns them from then on.
        """

    def split(self) -> Listener:
        """This listener or a new one, for a new communicator made from the one that this listener serves.

        Does not block. Raises TransportUnavailable if this process has no room for another group.
        """

    def close(self) -> None:
        """Stop listening; close sockets that were not attached. Idempotent, never raises."""


def left_out(scheme: str) -> str | None:
    """None if the C++ engine was built with the transport `scheme`, else the reason why not, as an error text."""
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
        """None if the transport works on this machine, else the reason why not. The test takes milliseconds."""

    def listen(self, scope: Scope) -> Listener:
        """Open the sockets on which peers can reach this rank. Does not block.

        Raises TransportUnavailable if the transport does not work here, or if this process lacks the resources for the
        group that `scope` describes; ValueError for an unknown interface.
        """

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        """None if the two ranks can connect, else the reason why not. Does not block, opens no connection.

        The result does not change if `mine` and `theirs` are exchanged.
        """

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        """Tell the C++ engine, by `group.route`, how to reach the peer at `theirs`; called if `reaches` returned None.

        Opens no connection. `group.route` needs the name of a kind of links in the engine: shm, tcp, inproc, or one
        that a package has loaded (docs/plugins.md). May wait up to `timeout` seconds for the peer, then raises
        OpTimeout. Raises TransportUnavailable if no address of the peer can be used from here, ValueError for a
        malformed address.
        """
