"""The connections of a tcp store's server that have not authenticated yet: who may stay, and who has to go.

Invariant: there are at most `limit` of them, each for at most `patience` seconds from its start, and a new one is
always let in. Where there is no room, the address that holds most of the places gives up its oldest. So a crowd that
comes back as fast as it is dropped costs a rank nothing as long as the rank's proof is quicker than the crowd's next
`limit` connections, and a crowd at another address costs it nothing at all.
"""

from __future__ import annotations

import ipaddress
from typing import Generic, TypeVar

MAX_PENDING = 256

T = TypeVar("T")


class Admission(Generic[T]):
    """The unproven, by age and by address. Times are of the monotonic clock."""

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._places: dict[T, tuple[float, str]] = {}  # since when, and its address; in order of age
        self._by_source: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, peer: T) -> bool:
        return peer in self._places

    def enter(self, peer: T, address: str, now: float) -> T | None:
        """Give `peer` a place; who has to go for it, and is forgotten here, or None."""
        victim = self.oldest() if len(self._places) >= self._limit else None
        source = _network(address)
        self._places[peer] = now, source
        self._by_source.setdefault(source, {})[peer] = None
        return victim

    def oldest(self) -> T | None:
        """Take the place of the oldest of the address that has most of them; None if nobody has one."""
        if not self._places:
            return None
        largest = max(self._by_source, key=lambda source: len(self._by_source[source]))
        victim = next(iter(self._by_source[largest]))
        self.leave(victim)
        return victim

    def leave(self, peer: T) -> None:
        """Its place is free: it has proved itself, or is gone. Idempotent."""
        place = self._places.pop(peer, None)
        if place is not None:
            neighbours = self._by_source[place[1]]
            del neighbours[peer]
            if not neighbours:
                del self._by_source[place[1]]

    def due(self) -> float | None:
        """When the next one's time is over; None if nobody has a place."""
        return next(iter(self._places.values()))[0] + self._patience if self._places else None

    def expired(self, now: float) -> list[T]:
        """Those whose time is over. They keep their places until they `leave`."""
        found = []
        for peer, (since, _) in self._places.items():
            if now - since < self._patience:
                break
            found.append(peer)
        return found


def _network(address: str) -> str:
    """What counts as one source: an IPv4 address, or the /64 of an IPv6 one, which a single host has to itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if found.version == 4 else str(found.packed[:8].hex())
