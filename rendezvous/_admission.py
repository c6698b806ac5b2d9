"""The connections of a tcp store's server that have not authenticated yet, and which of them to close.

Invariant: at most `limit` connections may be unauthenticated, each for at most `patience` seconds, and a new connection
is always accepted. If there is no room, the oldest connection of the address with most connections is closed. So an
attacker at the address of a rank, who reconnects all the time, delays this rank only by making `limit` connections
before the rank has authenticated. An attacker at another address never delays it.
"""

from __future__ import annotations

import ipaddress
from typing import Generic, TypeVar

MAX_PENDING = 256

T = TypeVar("T")


class Admission(Generic[T]):
    """The unauthenticated connections, by age and by address. Times are those of the monotonic clock."""

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
        """Add `peer`. If this exceeds the limit, remove another connection and return it, to be closed; else None."""
        victim = self.oldest() if len(self._places) >= self._limit else None
        source = _network(address)
        self._places[peer] = now, source
        self._by_source.setdefault(source, {})[peer] = None
        return victim

    def oldest(self) -> T | None:
        """Remove and return the oldest connection of the address with most connections; None if there are none."""
        if not self._places:
            return None
        largest = max(self._by_source, key=lambda source: len(self._by_source[source]))
        victim = next(iter(self._by_source[largest]))
        self.leave(victim)
        return victim

    def leave(self, peer: T) -> None:
        """Remove `peer`, which has authenticated or is closed. Idempotent."""
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
        """The connections whose time has passed. They count until `leave` removes them."""
        found = []
        for peer, (since, _) in self._places.items():
            if now - since < self._patience:
                break
            found.append(peer)
        return found


def _network(address: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 address, which one host may own alone."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if found.version == 4 else str(found.packed[:8].hex())
