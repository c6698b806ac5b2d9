"""The interface of a transport, which finds out how ranks reach each other, before the engine opens links between them.

Invariant: a transport moves no data. It listens, publishes addresses and passes the addresses of peers to the engine,
whose links (connections) carry the data. It decides whether two ranks can connect by their places: the published host
and addresses of each. Both ranks come to the same decision, because both use the same two places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from collectives.transports.host import HostIdentity

if TYPE_CHECKING:
    from collectives.native._engine import Group


@dataclass(frozen=True, slots=True)
class Scope:
    """Settings of a rank's listening sockets: which hosts may connect, and how much memory the group needs.

    `network` tells whether other machines may connect; if not, only loopback is used. It is True if the job has a
    secret, or if the user passed `insecure`. `interface` is the name or address of the only network interface to use;
    None means all interfaces that are up.

    `ranks` is the number of ranks of the group, on all hosts. `segment` is the size in bytes of the pieces in which
    shared memory transfers a message; 0 means the default. The size of the shared memory depends on `ranks` and
    `segment`.
    """

    network: bool
    interface: str | None = None
    ranks: int = 2
    segment: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses at which other ranks can reach `rank` over one transport.

    `identity` is the rank's host and process. `addresses` are the texts that the rank's listener published. `ended`
    tells whether the process has ended since then, so that nobody listens any more.
    """

    rank: int
    identity: HostIdentity
    addresses: tuple[str, ...]
    ended: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.identity.host}"


class Listener(Protocol):
    """The sockets on which a rank accepts connections over one transport.

    The object owns the sockets until `attach` passes them to the C++ engine. It serves one communicator. If `split`
    returns the same object, it also serves the communicators that are split or duplicated from its communicator.
    """

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses of the sockets on which this rank accepts connections, as short ASCII texts.

        This rank publishes them to its peers; they are not secret.
        """

    def attach(self, group: Group) -> None:
        """Let the C++ communicator `group` accept connections on the sockets of this listener.

        Called once for each group. The first call passes the sockets to the C++ engine, which owns them afterwards.
        Raises: OSError.
        """

    def split(self) -> Listener:
        """Return the listener for a new communicator, which is split or duplicated from this listener's communicator.

        The result may be this listener itself. Does not block. Raises: TransportUnavailable if this process lacks the
        resources for another communicator.
        """

    def close(self) -> None:
        """Stop listening, and close the sockets if the C++ engine does not own them. Idempotent. Raises nothing."""


def left_out(scheme: str) -> str | None:
    """Return None if the C++ engine was compiled with the transport `scheme`. Otherwise return an error text."""
    from collectives.native import _engine

    known = _engine.transports()
    if scheme in known:
        return None
    return f"this build of the library has no links of {scheme}; it has those of {', '.join(known) or 'nothing'}"


class Transport(Protocol):
    """One way to connect two ranks, such as shared memory or TCP.

    Objects of this class have no state: one object serves all groups of the process.
    """

    @property
    def scheme(self) -> str:
        """The transport's name, as in `init(transport=...)`."""

    def available(self) -> str | None:
        """Return None if the transport, such as TCP, works on this machine, or the reason why it does not, as text.

        The call takes milliseconds.
        """

    def listen(self, scope: Scope) -> Listener:
        """Open the sockets on which peers can reach this rank over a transport, and return them as a `Listener`.

        Does not block. Raises: TransportUnavailable if the transport does not work on this machine, or if resources for
        the group that `scope` describes are lacking; ValueError for an unknown network interface.
        """

    def reaches(self, mine: Place, theirs: Place) -> str | None:
        """Return None if the ranks at `mine` and `theirs` can connect, or the reason why they cannot, as text.

        Opens no connection and does not block. The result is the same if `mine` and `theirs` are exchanged.
        """

    def route(self, group: Group, mine: Place, theirs: Place, scope: Scope, timeout: float) -> None:
        """Tell the C++ engine, by `group.route`, how to reach the peer at `theirs`.

        Called only if `reaches` returned None. Opens no connection. `mine` is where this rank can be reached. `scope`
        names the network interface to use, if the user has chosen one. `group.route` expects the name of a transport
        that is compiled into the engine, such as "shm" or "tcp", or that a plug-in has added (docs/plugins.md). The
        call may wait up to `timeout` seconds for the peer.

        Raises: OpTimeout if the peer does not answer in this time; TransportUnavailable if no address of the peer can
        be used from this host; ValueError for a malformed address.
        """


@runtime_checkable
class ChoosesPorts(Protocol):
    """An additional method of a `Transport` that chooses, for each peer, one of several ports of network devices."""

    def choose_ports(self, group: Group, mine: Place, theirs: Sequence[Place]) -> None:
        """Tell the C++ engine, by `group.use_port`, which port of this rank reaches each of the peers at `theirs`.

        Call it before any listener is attached to `group`, since a peer may connect at once. Raises:
        TransportUnavailable if no port reaches a peer; ValueError for published texts that no rank can have published.
        """
