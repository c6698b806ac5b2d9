"""The connections of a tcp store's server that have not authenticated yet, and which of them to close.

Invariant: there are at most `limit` of them, each for at most `patience` seconds from its start, and a new one is
always accepted. If there is no room, the oldest connection of the address with most connections is closed. So an
attacker who reconnects as fast as connections are closed delays a rank only if the rank's proof takes longer than the
attacker's next `limit` connections, and an attacker at another address never delays it.
"""

from __future__ import annotations

import ipaddress
from typing import Generic, TypeVar

MAX_PENDING = 256

T = TypeVar("T")


class Admission(Generic[T]):
    """The unauthenticated connections, by age and by address. Times are of the monotonic clock."""

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
        """Add `peer`; returns the connection to close for it, which is removed here, or None."""
        victim = self.oldest() if len(self._places) >= self._limit else None
        source = _network(address)
        self._places[peer] = now, source
        self._by_source.setdefault(source, {})[peer] = None
        return victim

    def oldest(self) -> T | None:
        """Remove the oldest connection of the address that has most; None if there are none."""
        if not self._places:
            return None
        largest = max(self._by_source, key=lambda source: len(self._by_source[source]))
        victim = next(iter(self._by_source[largest]))
        self.leave(victim)
        return victim

    def leave(self, peer: T) -> None:
        """Remove it: it has authenticated, or is closed. Idempotent."""
        place = self._places.pop(peer, None)
        if place is not None:
            neighbours = self._by_source[place[1]]
            del neighbours[peer]
            if not neighbours:
                del self._by_source[place[1]]

    def due(self) -> float | None:
        """When the next connection expires; None if there are none."""
        return next(iter(self._places.values()))[0] + self._patience if self._places else None

    def expired(self, now: float) -> list[T]:
        """Those that have expired. They count until they `leave`."""
        found = []
        for peer, (since, _) in self._places.items():
            if now - since < self._patience:
                break
            found.append(peer)
        return found


def _network(address: str) -> str:
    """One source: an IPv4 address, or the /64 of an IPv6 one, which a single host has to itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if found.version == 4 else str(found.packed[:8].hex())
