"""The connections to a tcp store's server that have not authenticated yet, and the choice of those to close.

Invariant: at most `limit` connections may be unauthenticated, each for at most `patience` seconds, and a new connection
is always accepted. If the limit is reached, the server finds the address with most unauthenticated connections and
closes the oldest of these. So an attacker who connects from the address of a rank can delay this rank only by making
`limit` connections before the rank has authenticated. An attacker at another address cannot delay the rank.
"""

from __future__ import annotations

import ipaddress
from typing import Generic, TypeVar

MAX_PENDING = 256

T = TypeVar("T")


class Admission(Generic[T]):
    """The list of a server's connections that have not authenticated yet.

    The list has at most `limit` connections. If it is full, a new connection replaces an old one. Each connection may
    stay for `patience` seconds. All times are in seconds of Python's monotonic clock.
    """

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._places: dict[T, tuple[float, str]] = {}  # start time and address; in order of age
        self._by_source: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, peer: T) -> bool:
        return peer in self._places

    def enter(self, peer: T, address: str, now: float) -> T | None:
        """Add `peer`, a new connection from the IP address `address`, to the list of unauthenticated connections.

        If the list is full, remove another connection and return it; the caller has to close it. Otherwise return None.
        `now` is the present time, in seconds of Python's monotonic clock.
        """
        victim = self.oldest() if len(self._places) >= self._limit else None
        source = _network(address)
        self._places[peer] = now, source
        self._by_source.setdefault(source, {})[peer] = None
        return victim

    def oldest(self) -> T | None:
        """Select one unauthenticated connection, remove it from the list and return it; None if the list is empty.

        The connection is the oldest from its client address. No other address has more connections in the list.
        """
        if not self._places:
            return None
        largest = max(self._by_source, key=lambda source: len(self._by_source[source]))
        victim = next(iter(self._by_source[largest]))
        self.leave(victim)
        return victim

    def leave(self, peer: T) -> None:
        """Remove `peer` from the list of unauthenticated connections, because it has authenticated or is closed.

        Does nothing if `peer` is not in the list.
        """
        place = self._places.pop(peer, None)
        if place is not None:
            neighbours = self._by_source[place[1]]
            del neighbours[peer]
            if not neighbours:
                del self._by_source[place[1]]

    def due(self) -> float | None:
        """Return the time when the oldest unauthenticated connection reaches its time limit; None without connections.

        The time is in seconds of Python's monotonic clock.
        """
        return next(iter(self._places.values()))[0] + self._patience if self._places else None

    def expired(self, now: float) -> list[T]:
        """Return the connections that have been unauthenticated for too long at the time `now`, the oldest first.

        The connections stay in the list of unauthenticated connections until `leave` is called for each of them. `now`
        is in seconds of Python's monotonic clock.
        """
        found = []
        for peer, (since, _) in self._places.items():
            if now - since < self._patience:
                break
            found.append(peer)
        return found


def _network(address: str) -> str:
    """The part of `address` that identifies a host: all of IPv4, the /64 prefix of IPv6, as one host may own a /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if found.version == 4 else str(found.packed[:8].hex())
