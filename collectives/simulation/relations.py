"""How a peer's rank follows from a rank, as one formula with a constant that holds for many ranks.

Invariant: with the same relation and constant, two ranks have different peers, except for FIXED.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

SHIFT: Final = 0  # (rank + constant) mod size
XOR: Final = 1
FIXED: Final = 2
MIRROR: Final = 3  # (constant - rank) mod size
HOSTS: Final = 4  # with constant = hosts on * ranks per host + local ranks on; both wrap around

Array = npt.NDArray[Any]


class Ranks(NamedTuple):
    """The ranks 0 to `size` - 1 of a group, `per_host` consecutive ranks on each host."""

    size: int
    per_host: int = 1

    @property
    def even(self) -> bool:
        """Whether there are several ranks on each host, and equally many on all."""
        return self.per_host > 1 and self.size % self.per_host == 0

    @property
    def hosts(self) -> int:
        return -(-self.size // self.per_host)

    def peers(self, relation: int, constants: Array | int, ranks: Array) -> Array:
        """Returns the peer of each of `ranks` by the formula `relation`, such as SHIFT: (rank + constant) mod size.

        `constants`: the constant in the formula, one for all ranks, or an array that is broadcast against `ranks`.
        """
        if relation == SHIFT:
            return (ranks + constants) % self.size
        if relation == XOR:
            return ranks ^ constants
        if relation == MIRROR:
            return (constants - ranks) % self.size
        if relation == HOSTS:
            per = self.per_host
            host = (ranks // per + constants // per) % self.hosts
            found: Array = host * per + (ranks % per + constants % per) % per
            return found
        return np.zeros_like(ranks) + constants

    def every_peer(self, relations: Array, constants: Array, ranks: Array) -> Array:
        """The peers of `ranks` by each of several formulas: a row for each of `relations` with its constant."""
        found = np.empty((relations.size, ranks.size), np.int64)
        for relation in np.unique(relations).tolist():
            rows = np.flatnonzero(relations == relation)
            found[rows] = self.peers(relation, constants[rows, None], ranks)
        return found

    def constants(self, relation: int, rank: int, peers: Array) -> Array:
        """The constants for which the formula `relation`, such as SHIFT, gives `peers` as the peers of `rank`."""
        if relation == SHIFT:
            return (peers - rank) % self.size
        if relation == XOR:
            return peers ^ rank
        if relation == MIRROR:
            return (peers + rank) % self.size
        if relation == HOSTS:
            per = self.per_host
            found: Array = (peers // per - rank // per) % self.hosts * per + (peers % per - rank % per) % per
            return found
        return peers

    def back(self, relation: int, constant: Array) -> Array:
        """The constants that lead from the peers back to the rank, if `constant` leads from the rank to the peers.

        `relation` is SHIFT, XOR or HOSTS.
        """
        if relation == XOR:
            return constant
        if relation == HOSTS:
            per = self.per_host
            found: Array = -(constant // per) % self.hosts * per + -constant % per
            return found
        other: Array = -constant % self.size
        return other
